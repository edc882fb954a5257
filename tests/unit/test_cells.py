"""Names, sizes, and the plan: which cells run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedmatrix.cells import Capacity, Cell, parse_size, plan, prompt_tokens, size_name


@pytest.mark.parametrize(("text", "tokens"), [("8K", 8192), (8192, 8192), ("1000", 1000), ("251K", 257024)])
def test_sizes(text, tokens):
    assert parse_size(text) == tokens


@pytest.mark.parametrize("text", ["8KB", "8k", "0", 0, -1, "0K", "8.5K", "", "K", "٣"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="no size"):
        parse_size(text)


@given(st.integers(1, 10**7))
def test_a_size_and_its_name_are_one(tokens):
    assert parse_size(size_name(tokens)) == tokens


def test_file_names():
    assert Cell("s", "prefill", 8192).path == "results/cells/s/prefill-8K.json"
    assert Cell("s", "decode", 8192, 16).path == "results/cells/s/decode-8K-x16.json"
    assert Cell("s", "decode", 1000, 16, 2).path == "results/cells/s/decode-1000-x16.r2.json"


def test_over_capacity_by_one_token():
    cell = Cell("s", "decode", 1024, 8)  # 8 × (1024 + 4096) = 40,960
    assert plan(cell, 4096, Capacity(kv_tokens=40960)).status is None
    over = plan(cell, 4096, Capacity(kv_tokens=40959))
    assert (over.status, over.kv_needed) == ("over_capacity", 40960)
    assert "40,960" in over.reason and "40,959" in over.reason


def test_over_context_comes_before_capacity():
    over = plan(Cell("s", "decode", 8192, 4), 4096, Capacity(kv_tokens=100, max_context=12287))
    assert over.status == "over_context"
    assert plan(Cell("s", "decode", 8192, 4), 4096, Capacity(max_context=12288)).status is None


def test_a_context_at_the_models_limit_leaves_room_for_one_token():
    assert prompt_tokens(262144, 262144) == 262143
    assert plan(Cell("s", "prefill", 262144), 4096, Capacity(max_context=262144)).status is None
    assert plan(Cell("s", "prefill", 262145), 4096, Capacity(max_context=262144)).status == "over_context"


def test_unknown_capacity_skips_nothing():
    assert plan(Cell("s", "decode", 10**6, 1000), 4096, Capacity()).status is None


def test_the_seed_pages_21_over_capacity_cells():
    # 900,000 tokens of KV cache, 4,096 of output: the page that shows which cells were not run.
    capacity = Capacity(kv_tokens=900_000, max_context=262144)
    contexts = [8, 16, 32, 64, 128, 251]
    over = [
        (context, lanes)
        for context in contexts
        for lanes in (1, 2, 4, 8, 16, 32, 64, 128)
        if plan(Cell("s", "decode", context * 1024, lanes), 4096, capacity).status == "over_capacity"
    ]
    assert len(over) == 21
    assert min(lanes for context, lanes in over if context == 8) == 128
    assert min(lanes for context, lanes in over if context == 251) == 4

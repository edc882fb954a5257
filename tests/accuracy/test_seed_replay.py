"""Figures against a server whose speed is known: the published table replayed, a part of it at five times its speed.

bench/seed_replay.py does the whole table. Limits here are those for a shared machine.
"""

import numpy as np
import pytest

from speedmatrix import load
from speedmatrix.cells import Cell
from speedmatrix.measure import Failed
from tests.accuracy.truth import Truth, serving


@pytest.fixture(scope="module")
def truth():
    with serving(speedup=5) as server:
        yield server


def decode(context: int, lanes: int) -> Cell:
    return Cell("truth", "decode", context * 1024, lanes)


@pytest.mark.parametrize(("context", "lanes"), [(8, 1), (8, 4), (8, 16), (8, 32), (16, 8), (32, 2), (64, 1)])
def test_total_time_between_tokens_and_ttft(truth: Truth, context, lanes):
    cell = decode(context, lanes)
    seen, told = truth.measure(cell)
    figures, right = seen.figures, truth.total_tok_s(cell)
    assert figures["total_tok_s"] == pytest.approx(right, rel=0.01)
    assert figures["itl_ms"] == pytest.approx(1000 * lanes / right, rel=0.01)
    assert figures["ttft_ms"] == pytest.approx(truth.ttft_ms(cell, told), rel=0.01, abs=5)
    assert figures["request_tok_s"] * figures["active_avg"] == pytest.approx(figures["total_tok_s"], rel=0.01)
    assert figures["output_tokens"] == pytest.approx(figures["total_tok_s"] * figures["measured_s"])
    assert figures["active_avg"] == pytest.approx(lanes, rel=0.01)
    assert figures["server_diff_pct"] == pytest.approx(0, abs=1)
    assert figures["ttft_kind"] == "cold" and seen.flags == []


@pytest.mark.parametrize("context", [8, 32, 64])
def test_prefill(truth: Truth, context):
    cell = Cell("truth", "prefill", context * 1024)
    seen, _ = truth.measure(cell)
    right_s = truth.speeds.chunk(cell.context, cell.context)
    assert seen.figures["ttft_ms"] == pytest.approx(1000 * right_s, rel=0.01)
    assert seen.figures["total_tok_s"] == pytest.approx(cell.context / right_s, rel=0.01)
    assert seen.figures["prompt_tokens"] == cell.context


def test_the_published_tables_21_cells_over_capacity(truth: Truth):
    cells = [decode(context, lanes) for context in (8, 16, 32, 64, 128, 251) for lanes in (1, 2, 4, 8, 16, 32, 64, 128)]
    assert sum(not truth.fits(cell) for cell in cells) == 21


def test_the_same_cell_ten_times(truth: Truth):
    totals = [truth.measure(decode(8, 4), duration_s=1, settle_s=0.1)[0].figures["total_tok_s"] for _ in range(10)]
    assert np.std(totals) / np.mean(totals) < 0.005


def test_lanes_shuffled_within_each_step():
    with serving(5, "--shuffle") as truth:
        seen, _ = truth.measure(decode(8, 16))
        assert seen.figures["total_tok_s"] == pytest.approx(truth.total_tok_s(decode(8, 16)), rel=0.002)


def test_a_server_that_runs_eight_of_sixteen(monkeypatch):
    monkeypatch.setattr(load, "FIRST_PATIENCE_S", 3.0)
    with serving(5, "--max-running", "8") as truth:
        seen, _ = truth.measure(decode(8, 16), duration_s=1)
        assert seen.limited == "ran 8 of 16: the server ran no more requests at once"
        assert seen.figures["active_avg"] == pytest.approx(8, rel=0.01)
        assert seen.figures["total_tok_s"] == pytest.approx(truth.total_tok_s(decode(8, 8)), rel=0.01)


def test_several_tokens_an_event():
    with serving(5, tokens_per_event=5) as truth:
        seen, _ = truth.measure(decode(8, 8))
        assert seen.figures["total_tok_s"] == pytest.approx(truth.total_tok_s(decode(8, 8)), rel=0.01)
        assert seen.figures["itl_ms"] == pytest.approx(1000 * 8 / truth.total_tok_s(decode(8, 8)), rel=0.01)


def test_a_window_of_one_second_at_ten_tokens_a_second():
    with serving(1) as truth:  # 16 requests at 8K: 12.9 tok/s each; steps of 77 ms, 13 in the window
        seen, _ = truth.measure(Cell("truth", "decode", 128, 16), duration_s=1, settle_s=0.2)
        assert seen.figures["total_tok_s"] == pytest.approx(
            truth.total_tok_s(Cell("truth", "decode", 8192, 16)), rel=0.01
        )
        assert "short_window" in seen.flags


def test_requests_shorter_than_the_window_restart_within_it():
    with serving(5) as truth:
        seen, _ = truth.measure(decode(8, 2), max_output_tokens=100)
        figures = seen.figures
        assert "prefill_in_window" in seen.flags and figures["restarts"] >= 2
        # A lane's gap until its next first token is lost to the total.
        assert figures["total_tok_s"] < truth.total_tok_s(decode(8, 2))
        assert figures["active_avg"] < 2


def test_unique_prompts_stay_cold_on_a_server_with_a_prefix_cache():
    with serving(5, "--prefix-cache") as truth:
        for _ in range(2):  # the same seed, twice on the live server
            seen, _ = truth.measure(decode(8, 2), duration_s=0.5)
            assert (seen.figures["ttft_kind"], seen.figures["cached_share"]) == ("cold", 0)


def test_the_engines_counters_decide_where_usage_is_silent():
    with serving(5, "--prefix-cache") as truth:
        truth.faults(null_details=True)
        seen, _ = truth.measure(decode(8, 2), duration_s=0.5)
        assert (seen.figures["ttft_kind"], seen.figures["cached_share"]) == ("cold", 0)
        replayed = {"duration_s": 0.5, "nonce": seen.prompt["nonce"]}
        again, _ = truth.measure(decode(8, 2), **replayed)
        assert again.figures["ttft_kind"] == "warm"
        with pytest.raises(Failed, match="the prompt was not cold: 100% came from the server's prefix cache"):
            truth.measure(Cell("truth", "prefill", 8192), nonce=seen.prompt["nonce"])


@pytest.mark.parametrize("context", [1, 1000, 8191, 262144])
def test_contexts_of_every_length(truth: Truth, context):
    cell = Cell("truth", "prefill", context)
    seen, _ = truth.measure(cell) if context < 262144 else fast_prefill(cell)
    # A context equal to the model's limit is sent one token short, since one must be generated.
    assert seen.figures["prompt_tokens"] == min(context, 262143)
    assert "inexact_context" not in seen.flags


def fast_prefill(cell: Cell):
    with serving(100) as truth:
        return truth.measure(cell)

"""Servers and streams that are known to mislead: what comes out right, flagged, or failed with a reason."""

import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from speedmatrix import corpus
from speedmatrix.cells import Cell, plan
from speedmatrix.engines import EngineError, Vllm
from speedmatrix.measure import Failed
from tests.accuracy.truth import Truth, serving

QUICK = {"duration_s": 1, "settle_s": 0.1}
DATA = Path(__file__).parents[1] / "data"
FOUR = Cell("truth", "decode", 512, 4)


@pytest.fixture(scope="module")
def shared_truth():
    with serving(5) as server:
        yield server


@pytest.fixture
def truth(shared_truth: Truth):
    shared_truth.faults()
    yield shared_truth
    shared_truth.faults()


def right(figures: dict, truth: Truth, cell: Cell = FOUR, rel: float = 0.01) -> bool:
    return figures["total_tok_s"] == pytest.approx(truth.total_tok_s(cell), rel=rel)


# --- streams


@pytest.mark.parametrize("reasoning", [False, True])
def test_in_a_chat_ttft_is_to_the_first_token_and_not_to_the_role(truth: Truth, reasoning):
    truth.faults(chat_only=True, reasoning=reasoning)
    seen, told = truth.measure(Cell("truth", "prefill", 8192))
    assert seen.figures["ttft_ms"] == pytest.approx(told["ttft_ms"][-1], rel=0.01, abs=2)
    assert seen.figures["ttft_ms"] > 150  # the role came at once
    seen, _ = truth.measure(FOUR, **QUICK)
    assert right(seen.figures, truth) and seen.flags == []
    assert seen.figures["token_source"] == "usage" and seen.prompt["form"] == "chat"


def test_tokens_that_decode_to_no_text_yet_are_counted(truth: Truth):
    truth.faults(no_text=True)
    seen, _ = truth.measure(FOUR, **QUICK)
    assert right(seen.figures, truth) and seen.flags == []


@pytest.mark.parametrize("usage", ["none", "null", "zeros"])
def test_where_usage_is_absent_events_are_counted_and_flagged(truth: Truth, usage):
    truth.faults(usage=usage)
    seen, _ = truth.measure(FOUR, **QUICK)
    assert right(seen.figures, truth)  # one token an event here
    assert seen.flags == ["events_counted"] and seen.figures["prompt_tokens"] is None


def test_packed_tokens_are_reconciled_with_the_final_usage():
    with serving(5, tokens_per_event=5) as truth:
        truth.faults(usage="final")
        seen, _ = truth.measure(FOUR, max_output_tokens=60, **QUICK)
        ended = [one for one in seen.run.streams if one.finish]
        assert len(ended) > 8 and {one.source for one in ended} == {"reconciled"}
        assert {one.final_tokens for one in ended} == {60}


@pytest.mark.parametrize("lumps", [0, 16])
def test_a_proxy_that_holds_events_back_is_flagged_and_has_no_latencies(truth: Truth, lumps):
    truth.faults(lumps=lumps)
    seen, _ = truth.measure(FOUR, max_output_tokens=64, **QUICK)
    assert "buffered" in seen.flags and seen.limited is None
    assert {seen.figures[key] for key in ("ttft_ms", "ttft_p99_ms", "itl_ms", "itl_p99_ms")} == {None}


def test_text_that_goes_round_is_flagged(truth: Truth):
    truth.faults(same_text=True)
    assert truth.measure(FOUR, **QUICK)[0].flags == ["repeating"]


def failure(truth: Truth, cell: Cell = FOUR, **keys) -> str:
    with pytest.raises(Failed) as caught:
        truth.measure(cell, **(QUICK | keys))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_error_in_mid_stream_fails_with_the_servers_words(truth: Truth):
    truth.faults(error_after=50)
    assert "the engine broke" in failure(truth)


def test_a_connection_cut_in_mid_stream_fails(truth: Truth):
    truth.faults(cut_after=50)
    assert "cut in mid-stream" in failure(truth)


def test_a_stream_that_stalls_for_good_fails_the_cell_in_time(truth: Truth):
    truth.faults(stall_after=200)
    began = time.monotonic()
    assert failure(truth, stall_s=1, duration_s=60) == "a stream stalled: no token for 1 s"
    assert time.monotonic() - began < 20


# --- servers


@pytest.mark.parametrize(
    ("faults", "left_out", "source"),
    [
        ({"refuses": ["ignore_eos"]}, ("ignore_eos",), "usage"),
        ({"refuses": ["continuous_usage_stats"]}, ("stream_options.continuous_usage_stats",), "events"),
        ({"refuses": ["ignore_eos"], "mute": True}, ("ignore_eos",), "usage"),
    ],
)
def test_fields_that_the_server_refuses_are_left_out(truth: Truth, faults, left_out, source):
    truth.faults(**faults)
    engine = truth.engine
    seen, _ = truth.measure(FOUR, engine, **QUICK)
    assert engine.dialect.left_out == left_out
    assert right(seen.figures, truth) and seen.figures["token_source"] == source
    assert seen.flags == (["events_counted"] if source == "events" else [])


@pytest.mark.parametrize(
    ("faults", "form", "sized_by"),
    [
        ({"wants_max_completion_tokens": True}, "ids", "server"),
        ({"text_only": True}, "text", "server"),
        ({"chat_only": True}, "chat", "server"),
        ({"chat_only": True, "no_tokenize": True, "wants_max_completion_tokens": True}, "chat", "usage"),
        ({"no_tokenize": True}, "text", "usage"),
    ],
)
def test_what_the_server_takes_is_found_out_and_prompts_are_as_long_as_asked(truth: Truth, faults, form, sized_by):
    truth.faults(**faults)
    cell = Cell("truth", "decode", 3000, 2)
    seen, _ = truth.measure(cell, **QUICK)
    assert (seen.prompt["form"], seen.prompt["sized_by"]) == (form, sized_by)
    told = {one.prompt_tokens for one in seen.run.streams}
    assert max(abs(tokens - 3000) for tokens in told) <= (0 if form == "ids" else 15)  # 0.5 %
    assert right(seen.figures, truth, cell) and seen.flags == []


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory):
    """A byte-level BPE whose slices do not re-encode to themselves, trained on the prompts' own kind of text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.train_from_iterator([corpus.text(1, 50_000)], trainers.BpeTrainer(vocab_size=600, show_progress=False))
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


@pytest.mark.parametrize("whole_directory", [False, True])
def test_a_stated_tokenizer_makes_exact_prompts_where_the_server_has_none(
    truth: Truth, tokenizer_file, whole_directory
):
    truth.faults(no_tokenize=True)
    stated = str(tokenizer_file.parent if whole_directory else tokenizer_file)
    engine = Vllm(replace(truth.engine.server, tokenizer=stated))
    seen, _ = truth.measure(Cell("truth", "decode", 2048, 2), engine, **QUICK)
    assert (seen.prompt["form"], seen.prompt["sized_by"]) == ("ids", "tokenizers")
    assert {one.prompt_tokens for one in seen.run.streams} == {2048} and seen.flags == []


def test_a_tokenizer_that_can_not_be_read_is_said_in_one_line(truth: Truth, tmp_path):
    truth.faults(no_tokenize=True)
    with pytest.raises(EngineError, match=r"tokenizer\.json is no tokenizer that can be read"):
        truth.measure(FOUR, Vllm(replace(truth.engine.server, tokenizer=str(tmp_path))), **QUICK)


def test_a_server_that_ignores_ignore_eos_is_kept_busy_all_the_same(truth: Truth):
    truth.faults(ignores_ignore_eos=50)
    seen, _ = truth.measure(FOUR, **QUICK)
    assert "stopped_early" in seen.flags and seen.figures["restarts"] >= 4
    assert seen.figures["active_avg"] > 3


def test_a_busy_server_is_waited_for_before_the_window(truth: Truth):
    truth.faults(busy_first=4)  # the first question's answers; the lanes' are in test_load
    assert right(truth.measure(FOUR, **QUICK)[0].figures, truth)


def test_a_server_that_gets_busy_inside_the_window_fails_the_cell(truth: Truth):
    truth.faults(busy_after=9, ignores_ignore_eos=100)
    assert "HTTP 503: too many requests" in failure(truth, duration_s=5)


@pytest.mark.parametrize("metrics", ["missing", "502", "html"])
def test_without_metrics_it_goes_on_without_waiting(truth: Truth, metrics):
    truth.faults(metrics=metrics)
    began = time.monotonic()
    seen, _ = truth.measure(FOUR, **QUICK)
    assert time.monotonic() - began < 8
    assert right(seen.figures, truth) and seen.flags == []
    assert seen.figures["server_tok_s"] is None and seen.figures["server_diff_pct"] is None
    capacity = truth.engine.facts().capacity
    assert capacity.kv_tokens is None and capacity.kv_source == "unknown: /metrics does not tell"


def test_a_server_that_goes_on_generating_after_we_hang_up_is_waited_for(truth: Truth):
    truth.faults(lingers=True)
    output = {"max_output_tokens": 600}  # 4 × 600 tokens: about a second more than the window holds
    for _ in range(2):
        seen, told = truth.measure(FOUR, **QUICK, **output)
        assert told["inside"] == 0 and right(seen.figures, truth)


def test_dropped_connections_and_stale_gauges_fail_nothing(truth: Truth):
    truth.faults(drops_idle=True, stale_gauges=True)
    for _ in range(2):
        assert right(truth.measure(FOUR, **QUICK)[0].figures, truth)


def test_requests_that_take_turns_are_limited_to_those_that_ran_at_once():
    with serving(5, "--max-running", "2") as truth:  # two streams of 60 tokens, then the next two
        seen, told = truth.measure(FOUR, max_output_tokens=60, **QUICK)
        assert seen.limited.startswith(
            "ran 2 of 4, by turns: the server runs no more, or raise measure.max_output_tokens"
        )
        assert seen.figures["active_avg"] == pytest.approx(2, abs=0.3)
        # Of the lanes that ran: the others' would include the time until those had ended.
        assert seen.figures["ttft_ms"] == pytest.approx(float(np.median(told["ttft_ms"][:2])), abs=5)


def test_a_server_that_preempts_is_flagged(truth: Truth):
    truth.faults(preempting=True)
    assert truth.measure(FOUR, **QUICK)[0].flags == ["preempted"]


def test_a_server_that_dies_under_load_fails_the_cell():
    with serving(5) as truth:
        truth.faults(crash_at=4)
        assert "mid-stream" in failure(truth)


# --- addresses


def test_an_address_of_ipv6():
    with serving(5, at="http://[::1]") as truth:
        assert right(truth.measure(FOUR, **QUICK)[0].figures, truth)


def test_https_with_a_private_certificate():
    with serving(5, at="https://localhost", tls=DATA / "localhost.pem") as truth:
        assert right(truth.measure(FOUR, **QUICK)[0].figures, truth)
        truth.verify_tls = False
        assert right(truth.measure(FOUR, **QUICK)[0].figures, truth)
        truth.verify_tls = True
        with pytest.raises(EngineError, match=r"certificate.*verify_tls"):
            truth.engine.facts()


def test_no_compression_is_asked_for(truth: Truth):
    truth.measure(FOUR, **QUICK)
    (head,) = {line for line in truth.told()["asked_for"] if line.lower().startswith("accept-encoding")}
    assert head.lower() == "accept-encoding: identity"


def test_a_context_of_the_models_limit_as_text_never_outgrows_it():
    with serving(20, "--max-context", "5000") as truth:
        truth.faults(chat_only=True)
        seen, _ = truth.measure(Cell("truth", "prefill", 5000))
        told = seen.figures["prompt_tokens"]
        assert 4999 * 0.995 <= told <= 4999 and seen.flags == []


# --- data-parallel ranks


def test_lanes_shuffled_over_four_ranks_out_of_phase_with_events_of_one_to_eight_tokens():
    with serving(5, "--ranks", "4", "--shuffle", "--random-tokens", tokens_per_event=8) as truth:
        cell = Cell("truth", "decode", 8192, 16)
        seen, _ = truth.measure(cell)
        four_on_each = 4 * truth.total_tok_s(Cell("truth", "decode", 8192, 4))
        assert seen.figures["total_tok_s"] == pytest.approx(four_on_each, rel=0.002)
        assert seen.figures["server_diff_pct"] == pytest.approx(0, abs=1)  # summed over the engines


def test_capacity_is_summed_over_ranks_and_each_ranks_share_must_hold():
    with serving(5, "--ranks", "2", "--kv-capacity", "10000") as truth:
        capacity = truth.engine.facts().capacity
        assert (capacity.kv_tokens, capacity.ranks) == (20_000, 2)
        three = Cell("truth", "decode", 5000, 3)  # 3 × 6,000 fit 20,000, but two on one rank need 12,000
        decided = plan(three, 1000, capacity)
        assert (decided.status, decided.kv_needed, decided.kv_has) == ("over_capacity", 12_000, 10_000)
        assert plan(Cell("truth", "decode", 5000, 2), 1000, capacity).status is None


# --- shared prompts, many lanes, short windows


def test_one_prompt_for_all_is_warm_and_counted_once():
    with serving(5, "--prefix-cache", "--kv-capacity", "40000") as truth:
        cell = Cell("truth", "decode", 8192, 16)
        assert plan(cell, 1000, truth.engine.facts().capacity).status == "over_capacity"  # 16 × 9,192
        assert plan(cell, 1000, truth.engine.facts().capacity, shared=True).status is None  # 8,192 + 16 × 1,000
        seen, _ = truth.measure(cell, prompts="shared", max_output_tokens=1000, **QUICK)
        assert right(seen.figures, truth, cell)
        assert (seen.figures["ttft_kind"], seen.prompt["kind"]) == ("warm", "shared")
        four, told = truth.measure(FOUR, prompts="shared", **QUICK)
        assert four.figures["ttft_ms"] == pytest.approx(float(np.median(told["ttft_ms"][1:5])), abs=5)


def test_256_lanes():
    with serving(0.5) as truth:
        cell = Cell("truth", "decode", 16, 256)
        # A step is 0.86 s: the first gap of a window that opens within one from the ramp holds the ramp's lateness.
        seen, _ = truth.measure(cell, window_only=True, max_output_tokens=1000, settle_s=1)
        assert right(seen.figures, truth, cell)
        assert seen.figures["active_avg"] == pytest.approx(256, rel=0.01)
        assert len({one.lane for one in seen.run.streams}) == 256


def test_a_window_shorter_than_one_gap_is_no_division_by_zero():
    with serving(0.1) as truth:  # 16 requests at 8K: a step of 0.77 s
        try:
            seen, _ = truth.measure(Cell("truth", "decode", 16, 16), duration_s=0.2, settle_s=0)
        except Failed as failed:
            assert "no tokens arrived within the 0.2 s" in str(failed)
        else:
            assert "short_window" in seen.flags and math.isfinite(seen.figures["total_tok_s"])

"""Figures by arithmetic: every right value here can be worked out by hand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedmatrix import metrics
from speedmatrix.arrivals import Run, Stream

MS = 1_000_000
S = 1_000 * MS


def stream(times_ms, tokens=None, lane=0, started_ms=0, **more) -> Stream:
    times = [round(t * MS) for t in times_ms]
    counts = list(tokens) if tokens is not None else [1] * len(times)
    return Stream(lane, 0, round(started_ms * MS), times, counts, source="usage", **more)


def run(streams, t0_ms, t1_ms) -> Run:
    return Run(streams, round(t0_ms * MS), round(t1_ms * MS))


def test_a_steady_lane_of_10_ms_a_token():
    figures = metrics.decode(run([stream(range(0, 5001, 10))], 1003, 4003))
    assert figures["output_tokens"] == pytest.approx(300)
    assert figures["total_tok_s"] == pytest.approx(100)
    assert figures["request_tok_s"] == pytest.approx(100)
    assert figures["itl_ms"] == pytest.approx(10)
    assert figures["itl_p99_ms"] == pytest.approx(10)
    assert figures["active_avg"] == pytest.approx(1)
    assert (figures["completed"], figures["restarts"], figures["measured_s"]) == (0, 0, 3)


def test_edges_inside_a_gap_take_their_part_of_it():
    # Gaps of 100 ms; the window [130, 370) holds 70 + 100 + 70 ms of them: 2.4 tokens, where counting events says 2.
    figures = metrics.decode(run([stream([0, 100, 200, 300, 400])], 130, 370))
    assert figures["output_tokens"] == pytest.approx(2.4)
    assert figures["total_tok_s"] == pytest.approx(10)


def test_several_tokens_an_event_are_spread_over_its_gap():
    # 8 tokens over (100, 200]: half of that gap is inside.
    assert metrics.output_tokens([metrics.trace(stream([100, 200], [1, 8]))], 150 * MS, 300 * MS) == pytest.approx(4)


def test_a_first_arrival_counts_as_a_point_and_carries_no_decoding_time():
    one = metrics.trace(stream([100, 150, 200], [1, 1, 1]))
    assert metrics.tokens_in(one, 50 * MS, 250 * MS) == (pytest.approx(2), 1)
    assert metrics.lane_rates([one], 50 * MS, 250 * MS) == [pytest.approx(20)]


def test_the_gap_of_a_restarted_lane_costs_total_but_not_per_request():
    # One lane: 20 ms a token for 1 s, 1 s of prefill, 20 ms a token again for 1 s.
    first = stream(range(0, 1001, 20), lane=0, finish="length", ended_ns=1000 * MS)
    second = stream(range(2000, 3001, 20), lane=0, started_ms=1001)
    figures = metrics.decode(run([first, second], 500, 2500))
    assert figures["output_tokens"] == pytest.approx(25 + 1 + 25)  # two half seconds at 50 tok/s and a first token
    assert figures["total_tok_s"] == pytest.approx(25.5)
    assert figures["request_tok_s"] == pytest.approx(50)
    assert figures["itl_ms"] == pytest.approx(20)
    assert figures["active_avg"] == pytest.approx(0.5)
    assert (figures["completed"], figures["restarts"]) == (1, 1)


def test_64_lanes_shuffled_within_each_step_count_exactly():
    # 64 lanes, a step of 50 ms, each lane's place within a step drawn anew: the truth is 64 / 0.05 s = 1280 tok/s.
    rng = np.random.default_rng(1)
    lanes = [stream(np.arange(0, 6000, 50) + rng.uniform(0, 5, 120), lane=lane) for lane in range(64)]
    figures = metrics.decode(run(lanes, 1017, 4017))
    assert figures["total_tok_s"] == pytest.approx(1280, rel=0.002)
    assert figures["request_tok_s"] * figures["active_avg"] == pytest.approx(figures["total_tok_s"], rel=0.01)


def test_reconciled_counts_are_scaled_to_the_final_usage():
    one = stream([0, 100, 200], [1, 1, 1])
    one.source, one.final_tokens = "reconciled", 15
    assert metrics.trace(one).tokens.tolist() == [5, 5, 5]


def test_a_reconciled_stream_without_a_final_usage_stays_as_counted():
    one = stream([0, 100], [1, 1])
    one.source = "reconciled"
    assert metrics.trace(one).tokens.tolist() == [1, 1]


def test_ttft_is_of_the_first_request_of_each_lane():
    lanes = [stream([100], lane=0, started_ms=0), stream([300], lane=1, started_ms=100)]
    later = stream([2600], lane=0, started_ms=2000)
    figures = metrics.decode(run([*lanes, later], 1000, 3000))
    assert figures["ttft_ms"] == pytest.approx(150)  # the median of 100 and 200
    assert figures["ttft_p90_ms"] == pytest.approx(190)
    assert figures["ttft_in_window_ms"] == pytest.approx(600)


@pytest.mark.parametrize(
    ("cached", "kind", "share"),
    [([0, 0], "cold", 0), ([1000, 1000], "warm", 1), ([0, 1000], "mixed", 0.5), ([0, None], "unknown", None)],
)
def test_ttft_kind_by_what_was_cached(cached, kind, share):
    lanes = [stream([100], lane=i, prompt_tokens=1000, cached_tokens=c) for i, c in enumerate(cached)]
    figures = metrics.decode(run(lanes, 0, 1000))
    assert (figures["ttft_kind"], figures["cached_share"]) == (kind, share)


def plain(value) -> bool:
    """Whether a value is of Python's own types, as JSON and its schema take them."""
    return value is None or type(value) in (int, float, str, bool)


def test_figures_are_plain_numbers_whatever_happened_in_the_window():
    ended = stream(range(20, 1001, 20), lane=0, finish="length", ended_ns=1000 * MS, prompt_tokens=9, cached_tokens=0)
    again = stream(range(1500, 3001, 20), lane=0, started_ms=1001, prompt_tokens=9, cached_tokens=0)
    for streams in ([ended, again], [ended], [again], []):
        assert all(plain(value) for value in metrics.decode(run(streams, 500, 2500)).values())
    figures, details = metrics.prefill([ended, again])
    assert all(plain(value) for value in [*figures.values(), *details["repeats"][0].values()])
    assert all(plain(details[key]) for key in ("tok_s_min", "tok_s_max", "server_prefill_ms"))


def test_an_empty_window_has_no_speed_of_a_lane_and_divides_by_nothing():
    figures = metrics.decode(run([stream([10])], 1000, 2000))
    assert figures["output_tokens"] == 0
    assert (figures["request_tok_s"], figures["itl_ms"], figures["itl_p99_ms"]) == (None, None, None)


def test_two_arrivals_at_one_instant_lose_no_token():
    one = metrics.trace(stream([0, 100, 100, 200], [1, 1, 1, 1]))
    assert metrics.output_tokens([one], 0, 1000 * MS) == pytest.approx(4)


def test_prefill_speed_is_prompt_tokens_by_ttft():
    streams = [stream([t], prompt_tokens=8192, cached_tokens=0) for t in (800, 823, 1000)]
    figures, details = metrics.prefill(streams)
    assert figures["total_tok_s"] == pytest.approx(8192 / 0.823)
    assert figures["ttft_ms"] == pytest.approx(823)
    assert (details["tok_s_min"], details["tok_s_max"]) == (pytest.approx(8192), pytest.approx(10240))
    assert figures["ttft_kind"] == "cold"


def test_the_weakest_token_source_is_the_cells():
    a, b = stream([1]), stream([1])
    b.source = "events"
    assert metrics.token_source([a, b]) == "events"


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(1, 8)), min_size=2, max_size=60),
    st.lists(st.integers(0, 30_000), min_size=1, max_size=5),
)
def test_windows_side_by_side_hold_all_tokens_once(gaps, cuts):
    times = np.cumsum([gap for gap, _ in gaps])
    one = metrics.trace(stream(times, [n for _, n in gaps]))
    edges = sorted({0, *cuts, int(times[-1]) + 1})
    parts = [metrics.output_tokens([one], a * MS, b * MS) for a, b in itertools.pairwise(edges)]
    inside = [part for part in parts if not math.isnan(part)]
    assert sum(inside) == pytest.approx(sum(n for _, n in gaps))


def test_events_of_one_read_are_one_arrival_and_spread_over_the_gap_before_it():
    # Lumps of 4 tokens every 40 ms, from 0 on: 100 tok/s. The window [30, 230) cuts the lump at 40 in its last quarter.
    one = stream([40 * n for n in range(10) for _ in range(4)])
    figures = metrics.decode(run([one], 30, 230))
    assert figures["output_tokens"] == pytest.approx(20)
    assert figures["total_tok_s"] == pytest.approx(100) and figures["itl_ms"] == pytest.approx(10)
    assert figures["itl_p99_ms"] == pytest.approx(40)  # what a reader sees


def test_what_comes_at_once_with_the_first_token_counts_at_that_moment():
    figures = metrics.decode(run([stream([100] * 5)], 50, 1050))
    assert figures["output_tokens"] == 5 and figures["request_tok_s"] is None


def test_the_most_streams_that_decode_at_one_time():
    def at_once(*spans, t1=1000):
        return metrics.most_at_once([metrics.trace(stream(span)) for span in spans], t1 * MS)

    assert at_once() == 0
    assert at_once((0, 50, 100), (100, 200), (150, 300)) == 2  # the first ends as the second begins: together
    assert at_once((0, 100), (101, 200), (201, 300)) == 1
    assert at_once((0, 900), (10, 900), (1000, 1100)) == 2  # begun after the window: not in it

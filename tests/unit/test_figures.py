"""All figures of a cell from what is kept of it, the server's own counts included."""

import pytest

from speedmatrix import figures
from speedmatrix.arrivals import SECOND, Run, Stream

BEFORE, FIRST, LAST, AFTER = (
    {"t_s": 0.0, "prefix_hits": 100.0, "generated": 0.0},
    {"t_s": 10.0, "generated": 50.0, "running": 1.0},
    {"t_s": 12.0, "generated": 254.0, "running": 2.0},
    {"t_s": 15.0, "prefix_hits": 150.0, "generated": 300.0},
)


def steady(**more) -> Run:
    """One lane of 100 tok/s for 4 s, its window the 2 s in the middle."""
    step = SECOND // 100
    one = Stream(0, 0, 0, [step * n for n in range(1, 401)], [1] * 400, prompt_tokens=1000, source="usage")
    return Run([one], SECOND, 3 * SECOND, **more)


def test_the_servers_count_stands_beside_ours():
    told = figures.decode(steady(readings=[BEFORE, FIRST, LAST, AFTER], prompted=1000))
    assert told["total_tok_s"] == pytest.approx(100)
    assert (told["server_tok_s"], told["server_active_avg"]) == (102, 1.5)  # (254 - 50) / 2 s; (1 + 2) / 2
    assert told["server_diff_pct"] == pytest.approx(2)
    assert (told["cached_share"], told["ttft_kind"]) == (0.05, "mixed")  # 50 of 1000 prompt tokens


@pytest.mark.parametrize("readings", [None, [{"t_s": 0.0}] * 4])
def test_a_silent_server_leaves_its_figures_out(readings):
    told = figures.decode(steady(readings=readings, prompted=1000))
    assert [told[name] for name in figures.BY_SERVER] == [None] * 4
    assert (told["cached_share"], told["ttft_kind"]) == (None, "unknown")


def test_prefill_by_the_servers_own_clock_where_its_answers_are_silent():
    one = Stream(0, 1, 0, [SECOND // 2], [1], prompt_tokens=1000)
    before, after = {"t_s": 0.0, "prefill_s": 4.0, "prefills": 7.0}, {"t_s": 3.0, "prefill_s": 4.8, "prefills": 9.0}
    told, details = figures.prefill(Run([one], readings=[before, after], prompted=2000))
    assert told["total_tok_s"] == 2000  # 1000 tokens in 0.5 s
    assert details["server_prefill_ms"] == pytest.approx(400)  # 0.8 s over 2 requests
    one.prompt_ms = 333.0
    assert figures.prefill(Run([one], readings=[before, after]))[1]["server_prefill_ms"] == 333


def test_a_count_that_fell_or_is_not_told_has_no_rise():
    before, after = {"generated": 10.0, "drafts": 1.0, "preemptions": 5.0}, {"generated": 110.0, "preemptions": 3.0}
    assert [figures.rise(before, after, name) for name in ("generated", "drafts", "preemptions")] == [100, None, None]

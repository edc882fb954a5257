"""Flags: each rule raised by the least that breaks it, and not by what nearly does."""

import pytest

from speedmatrix import cycles, metrics, validity
from speedmatrix.arrivals import Run, Stream

MS = 1_000_000


def stream(times_ms, lane=0, tokens=1, started_ms=-50, **more) -> Stream:
    times = [round(t * MS) for t in times_ms]
    told = {"prompt_tokens": 100, "source": "usage"} | more
    return Stream(lane, lane, started_ms * MS, times, [tokens] * len(times), **told)


def steady(**more) -> Stream:
    return stream([10 * n for n in range(-1, 102)], **more)


def flags(*streams, ids=True, most=4096, preemptions=None, lags_ms=(), cpu_share=0.1, **figures) -> list[str]:
    run = Run(list(streams), 0, 1000 * MS, [lag * MS for lag in lags_ms], cpu_share=cpu_share)
    told = metrics.decode(run) | {"server_diff_pct": None} | figures
    evidence = validity.Evidence(run, told, validity.Meant(100, ids, most), validity.client_state(run), preemptions)
    return list(validity.flags(evidence))


def test_a_steady_window_has_none():
    assert flags(steady(), steady(lane=1)) == []


def test_prefill_in_window():
    ended = stream(range(-10, 501, 10), finish="length", ended_ns=500 * MS)
    assert flags(ended, stream(range(510, 1020, 10), started_ms=501)) == ["prefill_in_window"]


@pytest.mark.parametrize(("told", "ids", "raised"), [(100, True, False), (101, True, True), (100, False, False)])
def test_inexact_context_of_ids_is_any_difference(told, ids, raised):
    assert ("inexact_context" in flags(steady(prompt_tokens=told), ids=ids)) is raised


@pytest.mark.parametrize(("told", "raised"), [(1005, False), (1006, True), (995, False), (994, True)])
def test_inexact_context_of_text_is_over_half_a_percent(told, raised):
    assert bool(validity.inexact([steady(prompt_tokens=told)], validity.Meant(1000, False, 4096))) is raised


def test_one_odd_stream_is_enough_to_be_inexact():
    assert flags(steady(), steady(lane=1), steady(lane=2, prompt_tokens=99)) == ["inexact_context"]


@pytest.mark.parametrize(("gap_ms", "raised"), [(10.4, False), (10.7, True)])
def test_unsteady_is_over_five_percent_between_the_halves(gap_ms, raised):
    # First half: 50 tokens. Second: 500 / gap, 48.1 (3.8 % less) or 46.7 (6.5 % less).
    later = [500 + gap_ms * n for n in range(1, 50)]
    assert ("unsteady" in flags(stream([*range(-10, 501, 10), *later]))) is raised


@pytest.mark.parametrize(("gap_ms", "raised"), [(50, False), (51, True)])
def test_short_window_is_under_twenty_steps(gap_ms, raised):
    assert ("short_window" in flags(stream([gap_ms * n for n in range(-1, 23)]))) is raised


@pytest.mark.parametrize(("difference", "raised"), [(None, False), (2, False), (-2, False), (2.1, True), (-2.1, True)])
def test_server_disagrees_over_two_percent_either_way_and_never_when_unknown(difference, raised):
    assert ("server_disagrees" in flags(steady(), server_diff_pct=difference)) is raised


def test_client_bound_by_its_cpu_or_by_its_lateness():
    assert flags(steady(), cpu_share=0.9) == [] and flags(steady(), cpu_share=0.91) == ["client_bound"]
    assert flags(steady(), lags_ms=[1] * 100) == [] and flags(steady(), lags_ms=[1] * 90 + [30] * 10) == [
        "client_bound"
    ]


@pytest.mark.parametrize(("lag_ms", "ttft_ms", "raised"), [(20, 100, False), (21, 100, True), (21, 500, False)])
def test_client_bound_before_the_window_where_ttft_holds_it(lag_ms, ttft_ms, raised):
    run = Run([steady(started_ms=-10 - ttft_ms)], 0, 1000 * MS, [], cpu_share=0.1, ramp_lag_ns=lag_ms * MS)
    told = metrics.decode(run) | {"server_diff_pct": None}
    seen = validity.Evidence(run, told, validity.Meant(100, True, 4096), validity.client_state(run))
    assert told["ttft_ms"] == ttft_ms and ("client_bound" in validity.flags(seen)) is raised


def test_stopped_early_is_an_end_by_itself_before_the_limit():
    def ended(finish):
        return stream(range(-10, 501, 10), finish=finish, ended_ns=500 * MS)

    assert "stopped_early" in flags(ended("stop"), most=53)  # after 52 tokens
    assert "stopped_early" not in flags(ended("length"), most=53)
    assert "stopped_early" not in flags(ended("stop"), most=52)


def test_events_counted():
    assert flags(steady(source="events")) == ["events_counted"]
    assert flags(steady(source="reconciled", final_tokens=103)) == []


@pytest.mark.parametrize(("preemptions", "raised"), [(None, False), (0, False), (1, True)])
def test_preempted(preemptions, raised):
    assert ("preempted" in flags(steady(), preemptions=preemptions)) is raised


def lumps(size: int, first: int, **more) -> Stream:
    times = [0] * first + [20 * size + 10 * size * (n // size) for n in range(100)]
    return stream([t - 20 for t in times], **more)


def test_buffered_when_first_and_later_events_come_in_lumps():
    assert "buffered" in flags(lumps(5, first=5))
    assert "buffered" in flags(stream([500] * 40))
    assert "buffered" not in flags(lumps(5, first=1))  # a server that says several tokens at once, one by one
    assert "buffered" not in flags(steady())


def test_lumps_of_a_late_client_are_the_clients():
    found = flags(lumps(5, first=5), cpu_share=0.99)
    assert "client_bound" in found and "buffered" not in found


def texts(words: str, lane=0) -> Stream:
    said = words.split()
    times = [10 * n for n in range(len(said))]
    return stream(times, lane=lane, texts=[f"{word} " for word in said])


VARIED = " ".join(f"w{n * n % 997}" for n in range(100))
LOOP = " ".join(["round", "and"] * 50)


def test_repeating_where_most_lanes_go_round():
    assert "repeating" in flags(texts(LOOP), texts(LOOP, 1), texts(VARIED, 2))
    assert "repeating" not in flags(texts(VARIED), texts(VARIED, 1), texts(LOOP, 2))
    assert "repeating" not in flags(steady())  # texts were not kept


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("", 0),
        ("abcdefgh", 0),
        ("abab", 0),  # twice is no cycle
        ("ababab", 1),
        ("xyzab" + "cd" * 10, 20 / 25),
        ("aaa", 1),
        ("abcabcabcab", 1),
        ("abcabcabcx", 0),  # it got out of it
    ],
)
def test_the_share_of_a_text_that_is_one_cycle_at_its_end(text, share):
    assert cycles.share(text) == pytest.approx(share)


def test_every_flag_says_what_happened_and_what_to_do():
    assert len(validity.FLAGS) == len(validity.RULES) == 11
    for flag in validity.FLAGS.values():
        assert flag.happened.endswith(".") and flag.advice.endswith(".") and "\n" not in flag.happened + flag.advice

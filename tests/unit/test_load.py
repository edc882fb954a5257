"""Lanes and the window, over an opener that is programmed: what is kept, and what fails with which reason."""

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time

import pytest

from speedmatrix import lateness, load, metrics
from speedmatrix.load import LoadError, Timing

QUICK = Timing(duration_s=0.4, settle_s=0.05, stall_s=0.3, ramp_timeout_s=2)


def event(text="a", finish=None, **more) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text, "finish_reason": finish}], **more}).encode() + b"\n\n"


def opener(script):
    """An opener whose request `index` yields what the async generator `script(index)` does."""

    @contextlib.asynccontextmanager
    async def open_one(index, started):
        started()
        async with contextlib.aclosing(script(index)) as chunks:
            yield chunks

    return open_one


def steady(tokens: int, gap_s: float, first_s: float = 0.0):
    async def script(_index):
        await asyncio.sleep(first_s)
        for n in range(1, tokens + 1):
            yield event(usage={"completion_tokens": n, "prompt_tokens": 10})
            await asyncio.sleep(gap_s)
        yield event("", "length", usage={"completion_tokens": tokens, "prompt_tokens": 10}) + b"data: [DONE]\n\n"

    return opener(script)


def run(open_one, lanes=2, timing=QUICK):
    return asyncio.run(load.Load(open_one, lanes, timing).run())


def test_a_window_of_the_asked_length_after_the_last_lane_and_settling():
    seen = run(steady(1000, 0.005, first_s=0.1), lanes=3)
    assert seen.t1_ns - seen.t0_ns == 400_000_000
    assert {stream.lane for stream in seen.streams} == {0, 1, 2}
    assert seen.t0_ns - max(stream.t_ns[0] for stream in seen.streams) >= 50_000_000
    assert all(stream.t_ns[-1] > seen.t1_ns for stream in seen.streams)
    assert all(stream.finish is None for stream in seen.streams)


def test_a_lane_whose_stream_ends_starts_its_next_request_at_once():
    seen = run(steady(10, 0.005), lanes=2)
    lane = [stream for stream in seen.streams if stream.lane == 0]
    assert len(lane) > 4
    assert [stream.finish for stream in lane[:-1]] == ["length"] * (len(lane) - 1)
    pauses = [after.started_ns - before.ended_ns for before, after in itertools.pairwise(lane)]
    assert max(pauses) < 20_000_000
    assert metrics.decode(seen)["restarts"] > 0


def test_the_edge_callback_is_called_at_both_edges():
    calls = []
    asyncio.run(load.Load(steady(1000, 0.005), 1, QUICK).run(lambda: calls.append(time.perf_counter())))
    assert len(calls) == 2
    assert calls[1] - calls[0] == pytest.approx(0.4, abs=0.1)


def fails(script, timing=QUICK, lanes=1) -> str:
    with pytest.raises(LoadError) as caught:
        run(opener(script), lanes, timing)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_error_object_inside_the_stream():
    async def script(_index):
        yield event()
        yield b'data: {"error": {"message": "the pool is full"}}\n\ndata: [DONE]\n\n'

    assert "the pool is full" in fails(script)


def test_a_stream_cut_without_a_finish_reason():
    async def script(_index):
        yield event()

    assert "ended in mid-stream" in fails(script)


def test_an_answer_without_a_token():
    async def script(_index):
        yield event("", "stop") + b"data: [DONE]\n\n"

    assert "without a single token" in fails(script)


def test_a_lane_that_goes_silent_in_the_window():
    async def script(_index):
        for _ in range(40):
            yield event()
            await asyncio.sleep(0.005)
        await asyncio.sleep(60)

    assert "a stream stalled: no token for 0.3 s" in fails(script, Timing(5, 0.01, 0.3, 2))


@pytest.mark.parametrize("goes_on", [b"", b": keep-alive\n\n"])
def test_a_finish_reason_ends_a_stream_whose_connection_stays_open(goes_on, monkeypatch):
    monkeypatch.setattr(load.sse, "GRACE_S", 0.2)

    async def script(_index):
        yield event("a", "length")
        yield b'data: {"choices": [], "usage": {"completion_tokens": 1, "prompt_tokens": 77}}\n\n'
        while True:
            await asyncio.sleep(0.02)
            yield goes_on

    began = time.monotonic()
    (stream,) = asyncio.run(load.prefill(opener(script), 1, 10))
    assert 0.3 < time.monotonic() - began < 2  # two requests
    assert (stream.finish, stream.prompt_tokens) == ("length", 77)
    assert stream.ended_ns - stream.t_ns[0] < 10_000_000  # the grace is no part of the request


def test_a_first_token_has_the_whole_ramp_to_come(monkeypatch):
    monkeypatch.setattr(load, "FIRST_PATIENCE_S", 0.1)
    seen = run(steady(1000, 0.005, first_s=0.6), lanes=2)
    assert seen.ran is None and seen.t0_ns


def test_a_lane_that_never_starts():
    async def script(index):
        while True:
            await asyncio.sleep(60 if index == 1 else 0.005)
            yield event()

    with pytest.raises(LoadError, match="not ready: 1 of 2 requests"):
        asyncio.run(load.Load(opener(script), 2, Timing(0.2, 0, 1, 0.5), lambda: 0).run())


def limited_to(running: int):
    """A server that runs `running` requests at once; the others wait."""
    free = asyncio.Semaphore(running)

    async def script(_index):
        async with free:
            for n in range(1, 10_000):
                yield event(usage={"completion_tokens": n, "prompt_tokens": 10})
                await asyncio.sleep(0.005)

    return opener(script)


def test_a_server_that_runs_fewer_at_once_is_measured_with_those(monkeypatch):
    monkeypatch.setattr(load, "FIRST_PATIENCE_S", 0.3)
    seen = asyncio.run(load.Load(limited_to(2), 5, QUICK, lambda: 3).run())
    assert seen.ran == 2
    figures = metrics.decode(seen)
    assert figures["active_avg"] == pytest.approx(2, abs=0.05)
    assert figures["total_tok_s"] == pytest.approx(2 * figures["request_tok_s"], rel=0.05)


def test_lanes_that_never_start_though_none_waits_are_no_measurement(monkeypatch):
    monkeypatch.setattr(load, "FIRST_PATIENCE_S", 0.3)
    with pytest.raises(LoadError, match=r"not ready: 2 of 5 .*though none waits at the server"):
        asyncio.run(load.Load(limited_to(2), 5, QUICK, lambda: 0).run())


def test_lanes_that_end_before_all_have_started_say_so(monkeypatch):
    monkeypatch.setattr(load, "FIRST_PATIENCE_S", 0.3)

    async def script(index):
        await asyncio.sleep(60 if index == 1 else 0.02)
        yield event() + event("", "length") + b"data: [DONE]\n\n"

    with pytest.raises(LoadError, match="some ended before all had started: raise max_output_tokens"):
        asyncio.run(load.Load(opener(script), 2, QUICK).run())


def test_a_process_that_was_stopped_measured_nothing():
    async def script(index):
        for n in range(10_000):
            if n == 40:
                time.sleep(1.2)  # blocks the event loop as SIGSTOP would
            yield event()
            await asyncio.sleep(0.005)

    assert "stopped or late by 1." in fails(script, Timing(2, 0.01, 5, 2))


@pytest.mark.parametrize("stopped", [0, 3])
def test_a_prefill_during_which_the_process_was_stopped_measured_nothing(stopped):
    async def script(index):
        if index == stopped:
            time.sleep(1.2)  # also in the last request, after which nothing waits any more
        yield event("a", "length") + b"data: [DONE]\n\n"

    with pytest.raises(LoadError, match=r"stopped or late by 1\."):
        asyncio.run(load.prefill(opener(script), 3, 10))


def test_a_process_that_is_stopped_right_before_the_end_has_not_come_round_to_note_it():
    lags_ns, now_ns = [], 0
    beat = lateness.Beat(lambda: now_ns, lags_ns)
    now_ns = 5_010_000_000
    beat.note()
    assert lags_ns == [5_000_000_000] and "late by 5.0 s" in lateness.refusal(lags_ns)


def test_ttft_counts_to_the_first_token_not_to_the_role():
    async def script(_index):
        yield b'data: {"choices": [{"delta": {"role": "assistant"}, "finish_reason": null}]}\n\n'
        await asyncio.sleep(0.15)
        yield event("a", "length") + b"data: [DONE]\n\n"

    (stream,) = asyncio.run(load.prefill(opener(script), 1, 10))
    assert (stream.t_ns[0] - stream.started_ns) / 1e6 == pytest.approx(150, abs=30)


def test_latency_ends_at_the_last_token_not_at_the_finish_event():
    async def script(_index):
        yield event()
        await asyncio.sleep(0.1)
        yield event()
        await asyncio.sleep(0.3)
        yield event("", "length") + b"data: [DONE]\n\n"

    (stream,) = asyncio.run(load.prefill(opener(script), 1, 10))
    assert (stream.t_ns[-1] - stream.t_ns[0]) / 1e6 == pytest.approx(100, abs=30)


def test_prefill_discards_its_first_request_and_sends_one_at_a_time():
    inside, most = 0, 0

    async def script(index):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        try:
            usage = {"completion_tokens": 1, "prompt_tokens": 100 + index}
            yield event("a", "length", usage=usage) + b"data: [DONE]\n\n"
        finally:
            inside -= 1

    streams = asyncio.run(load.prefill(opener(script), 3, 10))
    assert [stream.index for stream in streams] == [1, 2, 3]
    assert [stream.prompt_tokens for stream in streams] == [101, 102, 103]
    assert most == 1


def test_a_prefill_that_never_answers():
    async def script(_index):
        await asyncio.sleep(60)
        yield b""

    with pytest.raises(LoadError, match=r"no first token within 0\.2 s"):
        asyncio.run(load.prefill(opener(script), 1, 0.2))


def test_waiting_for_a_core_that_is_taken_is_told():
    spin = "while True: pass"
    core = {min(os.sched_getaffinity(0))}
    hogs = [subprocess.Popen([sys.executable, "-c", spin], preexec_fn=lambda: os.sched_setaffinity(0, core))]
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, core)
    try:
        before, end = lateness.cpu_wait_ns(), time.monotonic() + 1
        while time.monotonic() < end:
            pass
        waited_s = (lateness.cpu_wait_ns() - before) / 1e9
    finally:
        os.sched_setaffinity(0, mine)
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert 0.2 < waited_s < 1  # half of the second, since two want the core

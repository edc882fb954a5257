"""Lanes, streams and the window: keeps C requests busy and notes every arrival. Clock and opener are injected."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from speedmatrix import lateness, sse
from speedmatrix.arrivals import SECOND, Run, Stream

TEXT_LANES = 8  # whose texts are kept until the cell's end: enough to see whether they go round in circles
TEXT_CHARACTERS = 200  # kept of each arrival's text: a server may send megabytes in one
PREFILL_ARRIVALS = 100  # of a request for one token; a server that goes on after that does not end
FIRST_PATIENCE_S, PATIENCE_FACTOR = 120.0, 4


class LoadError(Exception):
    """The cell failed; the message is the reason that the cell keeps."""


# opener(index, started): opens request `index`, calls `started` the moment it starts to be written, and yields the
# answer's bytes as they arrive.
Opener = Callable[[int, Callable[[], None]], AbstractAsyncContextManager[AsyncIterator[bytes]]]
Clock = Callable[[], int]


@dataclass(frozen=True)
class Timing:
    """How long things may take, in seconds; the config's `measure` keys of the same names."""

    duration_s: float
    settle_s: float
    stall_s: float
    ramp_timeout_s: float


async def stream_one(opener: Opener, stream: Stream, clock: Clock, most_arrivals: float = math.inf) -> None:
    """Read one request to its end into `stream`. LoadError when it ends with an error, is cut, or does not end."""
    decoder, counter = sse.Decoder(), sse.Counter()

    def started() -> None:
        stream.started_ns = clock()

    async with opener(stream.index, started) as chunks, _grace() as grace:
        async for chunk in chunks:
            now = clock()
            try:
                ended = _take(stream, decoder.feed(chunk), counter, now)
            except sse.StreamError as error:
                raise LoadError(str(error)) from None
            if stream.finish and grace.when() is None:
                stream.ended_ns = now
                grace.reschedule(asyncio.get_running_loop().time() + sse.GRACE_S)
            if ended:
                break
            if len(stream.t_ns) > most_arrivals:
                raise LoadError(
                    f"the server did not end after the one token that was asked for: {len(stream.t_ns)} came"
                )
    if stream.ended_ns is None or not grace.expired():  # else: with its finish reason, which nothing followed
        stream.ended_ns = clock()
    if stream.finish is None:
        raise LoadError("the connection ended in mid-stream, without a finish reason")
    if not stream.t_ns:
        raise LoadError("the server answered without a single token")


@contextlib.asynccontextmanager
async def _grace() -> AsyncIterator[asyncio.Timeout]:
    """A time limit, none at first, that ends what is inside without an error."""
    try:
        async with asyncio.timeout(None) as limit:
            yield limit
    except TimeoutError:
        if not limit.expired():
            raise


def _take(stream: Stream, events: list[bytes], counter: sse.Counter, now: int) -> bool:
    """Note the arrivals of `events`; whether the stream said [DONE]."""
    for data in events:
        if data == sse.DONE:
            return True
        event = sse.parse(data)
        tokens = counter.arrived(event)
        if tokens:
            stream.t_ns.append(now)
            stream.tokens.append(tokens)
            if stream.texts is not None:
                stream.texts.append(event.text[:TEXT_CHARACTERS])
        stream.finish = event.finish or stream.finish
        stream.prompt_tokens = event.prompt_tokens or stream.prompt_tokens
        stream.prompt_ms = event.prompt_ms if event.prompt_ms is not None else stream.prompt_ms
        if event.cached_tokens is not None:
            stream.cached_tokens = event.cached_tokens
        stream.final_tokens, stream.source = counter.final, counter.source
    return False


# How many requests wait at the server at this moment; None where that can't be known. May block.
Waiting = Callable[[], float | None]


class Load:
    """C lanes kept busy. `run()` goes through ramp, settling and window, and cancels what still streams."""

    def __init__(self, opener: Opener, lanes: int, timing: Timing, waiting: Waiting = lambda: None) -> None:
        self._opener, self._lanes, self._timing, self._waiting = opener, lanes, timing, waiting
        self._clock: Clock = time.perf_counter_ns
        self.result = Run([])
        self._beat = lateness.Beat(self._clock, self.result.lags_ns)
        self._latest: list[Stream | None] = [None] * lanes
        self._first_ns: dict[int, int] = {}

    async def run(self, at_edge: Callable[[], None] = lambda: None) -> Run:
        """Measure. `at_edge` is called at the window's start and end. Raises LoadError with the cell's reason."""
        tasks = [asyncio.create_task(self._lane(lane)) for lane in range(self._lanes)]
        tasks += [asyncio.create_task(self._beat.run()), asyncio.create_task(self._phases(at_edge))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            self._beat.note()
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        _refuse_late(self.result.lags_ns)
        return self.result

    async def _lane(self, lane: int) -> None:
        """Request after request, without a pause, until cancelled."""
        while True:
            stream = Stream(lane, len(self.result.streams), texts=[] if lane < TEXT_LANES else None)
            self.result.streams.append(stream)
            self._latest[lane] = stream
            await stream_one(self._opener, stream, self._clock)

    async def _phases(self, at_edge: Callable[[], None]) -> None:
        await self._ramp()
        await asyncio.sleep(self._timing.settle_s)
        run = self.result
        _refuse_late(run.lags_ns)
        run.ramp_lag_ns = max(run.lags_ns, default=0)
        run.lags_ns.clear()
        cpu_before = time.process_time_ns() + lateness.cpu_wait_ns()
        run.t0_ns = self._clock()
        run.t1_ns = run.t0_ns + round(self._timing.duration_s * SECOND)
        at_edge()
        while (now := self._clock()) < run.t1_ns:
            self._check_stalls(now)
            await asyncio.sleep(min(0.5, (run.t1_ns - now) / SECOND))
        at_edge()
        run.cpu_share = (time.process_time_ns() + lateness.cpu_wait_ns() - cpu_before) / (self._clock() - run.t0_ns)
        await self._until_past(run.t1_ns)

    async def _ramp(self) -> None:
        """Wait until every lane has had a first arrival; patience goes by progress, once there is any.

        Then it runs out when no further lane started for 120 s, or 4 times the longest gap between two lanes so far.
        """
        start = last = self._clock()
        longest_gap = 0
        while len(self._first_ns) < self._lanes:
            await asyncio.sleep(0.002)
            now = self._clock()
            for stream in self.result.streams:  # all of them: a lane's first stream may have ended already
                if stream.lane not in self._first_ns and stream.t_ns:
                    self._first_ns[stream.lane] = stream.t_ns[0]
                    longest_gap, last = max(longest_gap, stream.t_ns[0] - last), max(last, stream.t_ns[0])
            patience = max(FIRST_PATIENCE_S * SECOND, PATIENCE_FACTOR * longest_gap)
            if (self._first_ns and now - last > patience) or now - start > self._timing.ramp_timeout_s * SECOND:
                await self._settle_for_fewer((now - start) / SECOND)
                return

    async def _settle_for_fewer(self, waited_s: float) -> None:
        """Measure the lanes that run, if the server runs no more at once; LoadError if it is something else."""
        ready = f"{len(self._first_ns)} of {self._lanes} requests had a first token after {waited_s:.0f} s"
        if not self._first_ns:
            raise LoadError(f"not ready: {ready}")
        if len(self.result.streams) > self._lanes:
            raise LoadError(f"not ready: {ready}, and some ended before all had started: raise max_output_tokens")
        if await asyncio.to_thread(self._waiting) == 0:
            raise LoadError(f"not ready: {ready}, though none waits at the server")
        self.result.ran = len(self._first_ns)

    def _silent_since(self, lane: int) -> int:
        """When the lane last showed life: its stream's last arrival, or its start."""
        stream = self._latest[lane]
        assert stream is not None
        return stream.t_ns[-1] if stream.t_ns else max(stream.started_ns, self._first_ns[lane])

    def _check_stalls(self, now: int) -> None:
        for lane in self._first_ns:
            if now - self._silent_since(lane) > self._timing.stall_s * SECOND:
                raise LoadError(f"a stream stalled: no token for {self._timing.stall_s:g} s")

    async def _until_past(self, edge_ns: int) -> None:
        """Read on until every lane has had an arrival past the edge, so that the window's last gap is known."""
        while any(self._silent_since(lane) <= edge_ns for lane in self._first_ns):
            self._check_stalls(self._clock())
            await asyncio.sleep(0.002)


def _refuse_late(lags_ns: list[int]) -> None:
    if late := lateness.refusal(lags_ns):
        raise LoadError(late)


async def prefill(opener: Opener, repeats: int, timeout_s: float, clock: Clock = time.perf_counter_ns) -> list[Stream]:
    """One discarded request, then `repeats` requests one after another; each must end within `timeout_s` seconds."""
    streams, lags_ns = [Stream(0, index) for index in range(repeats + 1)], list[int]()
    beat = lateness.Beat(clock, lags_ns)
    beating = asyncio.create_task(beat.run())
    try:
        for stream in streams:
            async with asyncio.timeout(timeout_s):
                await stream_one(opener, stream, clock, PREFILL_ARRIVALS)
        beat.note()
    except TimeoutError:
        raise LoadError(f"no first token within {timeout_s:g} s") from None
    finally:
        beating.cancel()
    _refuse_late(lags_ns)
    return streams[1:]


async def until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until `condition` (which may block for a moment) holds; False when it did not within `timeout_s`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while not await asyncio.to_thread(condition):
                await asyncio.sleep(0.05)
            return True
    return False

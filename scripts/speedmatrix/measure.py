"""One cell, measured: prompts, idle check, load, figures and flags. Knows no files and no Snakemake."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import uvloop

from speedmatrix import figures, load, metrics, opener, prompts, sizing, tokenizing, untrusted, validity
from speedmatrix.arrivals import Run
from speedmatrix.cells import Capacity, Cell, prompt_tokens
from speedmatrix.config import Measure
from speedmatrix.engines import Engine, EngineError

IDLE_TIMEOUT_S = 60.0
_PREFILL_TIMEOUT_S = 3600.0
ODD_ANSWERS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, aiohttp.ClientError)


class Failed(Exception):
    """The cell failed; the message is the reason that it keeps."""


@dataclass
class Measured:
    """A measured cell: figures and what they came from."""

    figures: dict[str, Any]
    prompt: dict[str, Any]
    lanes: int
    evidence: dict[str, str] = field(default_factory=dict)  # what was seen, by flag
    prefill: dict[str, Any] | None = None
    client: dict[str, float | None] | None = None
    run: Run | None = None

    @property
    def flags(self) -> list[str]:
        """The names of the rules that the measurement breaks."""
        return list(self.evidence)

    @property
    def limited(self) -> str | None:
        """`ran 8 of 16: …` where the server ran fewer requests at once than asked for, and what that means."""
        if self.run is None or self.run.ran is None:
            return None
        by_turns = len({one.lane for one in self.run.streams if one.t_ns}) == self.lanes
        why = "the server runs no more, or raise measure.max_output_tokens, since requests ended before others began"
        why = f"by turns: {why}" if by_turns else "the server ran no more requests at once"
        return f"ran {self.run.ran} of {self.lanes}{', ' if by_turns else ': '}{why}"


@dataclass(frozen=True)
class Task:
    """What to measure, and on what."""

    cell: Cell
    measure: Measure
    engine: Engine
    capacity: Capacity

    @property
    def shares_prompt(self) -> bool:
        """Whether all requests have one prompt; a prefill cell's never do."""
        return self.measure.prompts == "shared" and self.cell.phase == "decode"


def run(task: Task) -> Measured:
    """Measure one cell on an idle server. Raises Failed with a reason."""
    measuring = _prefill if task.cell.phase == "prefill" else _decode
    try:
        return uvloop.run(measuring(task))
    except (load.LoadError, EngineError, sizing.SizeError) as error:
        raise Failed(str(error)) from error
    except ODD_ANSWERS as error:  # a server said what nobody thought of: that is this cell's matter, not the sweep's
        said = untrusted.line(f"{type(error).__name__}: {error}")
        raise Failed(f"the server's answers could not be made sense of ({said}): see the cell's log") from error


async def _idle(engine: Engine) -> bool:
    """Wait until the server runs and queues nothing; at once where it does not tell.

    A gauge that is stale is cured by one request of one token.
    """

    def idle() -> bool:
        return not engine.requests_inside()

    if await load.until(idle, IDLE_TIMEOUT_S / 4):
        return True
    await asyncio.to_thread(engine.probe)
    return await load.until(idle, IDLE_TIMEOUT_S * 3 / 4)


async def _require_idle(engine: Engine) -> None:
    if not await _idle(engine):
        inside = engine.requests_inside()
        raise load.LoadError(f"server busy: {inside} requests still run or wait there after {IDLE_TIMEOUT_S:g} s")


class _Bodies:
    """Request bodies by index; the first ones are built before the clock starts."""

    def __init__(self, task: Task, max_tokens: int, ahead: int) -> None:
        measure = task.measure
        length = prompt_tokens(task.cell.context, task.capacity.max_context)
        self.nonce = measure.nonce or prompts.draw_nonce()
        unique = tokenizing.build(task.engine, length, measure.seed, self.nonce, measure.request)
        self.prompts = prompts.Shared(unique) if task.shares_prompt else unique
        self._max_tokens, self._task, self._attempt = max_tokens, task, prompts.draw_nonce()
        self._ready = {index: self._build(index) for index in range(ahead)}

    def __call__(self, index: int) -> bytes:
        return self._ready.pop(index, None) or self._build(index)

    def _build(self, index: int) -> bytes:
        body = self._task.engine.body(self.prompts.request(index), self._max_tokens)
        named = self._task.engine.naming(self.request_id(index))
        return json.dumps(body | named | self._task.measure.request, separators=(",", ":")).encode()

    def request_id(self, index: int) -> str:
        """A name that no other request at the server has."""
        return f"speed-matrix-{self._attempt}-{index}"

    @property
    def identity(self) -> dict[str, Any]:
        """What the cell keeps of its prompts."""
        measure, dialect = self._task.measure, self._task.engine.dialect
        return {
            "kind": "shared" if self._task.shares_prompt else "unique",
            "form": dialect.prompt if dialect.endpoint == "completions" else "chat",
            "sized_by": dialect.sized_by,
            "seed": measure.seed,
            "nonce": self.nonce,
            "sha256": prompts.sha256(self.prompts.request(0)),
        }


async def _prefill(task: Task) -> Measured:
    bodies = _Bodies(task, 1, ahead=task.measure.prefill_repeats + 1)
    await _require_idle(task.engine)
    before = await asyncio.to_thread(reading, task.engine)
    async with opener.session(task.engine.server.headers, task.engine.server.verify_tls) as http:
        opened = opener.opener(http, task.engine.completions_url, bodies, lambda: True)
        streams = await load.prefill(opened, task.measure.prefill_repeats, _PREFILL_TIMEOUT_S)
    prompted = (len(streams) + 1) * bodies.prompts.length
    seen = Run(streams, readings=[before, await asyncio.to_thread(reading, task.engine)], prompted=prompted)
    cell_figures, details = figures.prefill(seen)
    if cell_figures["ttft_kind"] in ("warm", "mixed"):
        raise Failed(f"the prompt was not cold: {cell_figures['cached_share']:.0%} came from the server's prefix cache")
    meant = validity.Meant(bodies.prompts.length, task.engine.dialect.prompt == "ids", 1)
    inexact = validity.inexact(streams, meant)
    evidence = {validity.INEXACT: inexact} if inexact else {}
    return Measured(cell_figures, bodies.identity, 1, evidence, prefill=details, run=seen)


async def _decode(task: Task) -> Measured:
    measure, engine, lanes = task.measure, task.engine, task.cell.concurrency
    bodies = _Bodies(task, measure.max_output_tokens, ahead=2 * lanes)
    if task.shares_prompt:
        await asyncio.to_thread(engine.prompt_tokens, bodies.prompts.request(0), measure.request)
    await _require_idle(engine)
    timing = load.Timing(measure.duration_s, measure.settle_s, measure.stall_s, measure.ramp_timeout_s)
    edges, before = _Edges(engine), await asyncio.to_thread(reading, engine)
    async with opener.session(engine.server.headers, engine.server.verify_tls) as http:
        lane_load: load.Load
        opened = opener.opener(http, engine.completions_url, bodies, lambda: lane_load.result.t0_ns == 0)
        lane_load = load.Load(opened, lanes, timing, lambda: engine.counters().waiting)
        try:
            seen = await lane_load.run(edges.note)
        finally:
            open_ones = [bodies.request_id(one.index) for one in lane_load.result.streams if one.ended_ns is None]
            await asyncio.to_thread(engine.abort, open_ones)
    at_once = metrics.most_at_once([metrics.trace(one) for one in seen.streams], seen.t1_ns)
    if seen.ran is None and at_once < lanes and not validity.in_lumps(seen.streams):
        seen.ran = at_once  # all had a first token, but never all together: they took turns
    seen.readings = [before, *await edges.readings(), await asyncio.to_thread(reading, engine)]
    seen.prompted = len(seen.streams) * bodies.prompts.length
    cell_figures = figures.decode(seen)
    if not cell_figures["output_tokens"]:
        raise Failed(
            f"no tokens arrived within the {measure.duration_s:g} s of the window: raise measure.duration_s, or"
            " measure.max_output_tokens if prompts took all of it"
        )
    await _idle(engine)  # what it still does for us is over before the next cell; that one refuses a busy server
    client = validity.client_state(seen)
    meant = validity.Meant(bodies.prompts.length, engine.dialect.prompt == "ids", measure.max_output_tokens)
    preemptions = figures.rise(seen.readings[0], seen.readings[-1], "preemptions")
    evidence = validity.flags(validity.Evidence(seen, cell_figures, meant, client, preemptions))
    if validity.BUFFERED in evidence:
        cell_figures |= dict.fromkeys(metrics.LATENCIES)
    return Measured(cell_figures, bodies.identity, lanes, evidence, client=client, run=seen)


def reading(engine: Engine) -> figures.Reading:
    """The server's own counters, with the time in the middle of reading them."""
    before = time.perf_counter()
    counters = engine.counters()
    return counters.told((before + time.perf_counter()) / 2)


class _Edges:
    """The server's own counters at the window's edges, read in threads beside the event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reads: list[Awaitable[figures.Reading]] = []

    def note(self) -> None:
        """Read the counters now; called by the load at both edges."""
        self._reads.append(asyncio.ensure_future(asyncio.to_thread(reading, self._engine)))

    async def readings(self) -> list[figures.Reading]:
        """What was read, edge by edge."""
        return [await read for read in self._reads]

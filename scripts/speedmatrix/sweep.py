"""One cell's job: decided, measured on a server that is up and unchanged, and kept with every attempt."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speedmatrix import (
    METHOD,
    VERSION,
    arrivals,
    integration,
    measure,
    occupancy,
    redact,
    servers,
    serverstate,
    store,
    supervisor,
    telemetry,
)
from speedmatrix.cells import Capacity, Cell, Plan, plan
from speedmatrix.config import Config, Server
from speedmatrix.dialect import Dialect
from speedmatrix.digests import digest
from speedmatrix.engines import Engine, Facts, engine_for
from speedmatrix.history import attempts, failed_attempts, set_aside
from speedmatrix.servers import SweepError

NOT_STARTED = "server did not start"
UNUSABLE = "server can't be measured as it is"
log = logging.getLogger(__name__)


@dataclass
class _Attempt:
    """What is kept of an attempt: the cell's JSON, and beside it arrivals and telemetry's series as CSV."""

    result: dict[str, Any]
    run: arrivals.Run | None = None
    series: str | None = None


@dataclass(frozen=True)
class _Up:
    """The server as a cell finds it."""

    engine: Engine
    facts: Facts
    identity: dict[str, Any]


def run_cell(config: Config, cell: Cell, health_file: Path) -> dict[str, Any]:
    """Measure `cell` and write its JSON, arrivals and history; the JSON is returned. A cell that fails is data.

    Raises SweepError for faults that are no result: another sweep at work, an only server that can't start.
    """
    server, known = config.servers[cell.server], store.read_valid(health_file, "health")
    try:
        if kept := _attempt_that_counts_again(config, cell, known):
            store.write_cell(cell, kept)
            return kept
        with occupancy.sole_use(server.url):
            attempt = _attempt(config, cell, known)
            _keep(cell, attempt)
    except occupancy.Occupied as error:
        raise SweepError(str(error)) from error
    return attempt.result


def _attempt_that_counts_again(config: Config, cell: Cell, known: dict[str, Any]) -> dict[str, Any] | None:
    """The result that failed starts of another launch displaced, once the config is back at its own; else None.

    Only what lies right before such starts: a cell that was deleted to be measured again has no failed start after it.
    """
    past = iter(reversed(attempts(cell)))
    try:
        first = result = store.read_valid(next(past), "cell")
        while result["reason"] in (NOT_STARTED, UNUSABLE):
            result = store.read_valid(next(past), "cell")
    except (StopIteration, store.StoreError):
        return None
    if known["error"] or first is result or result["status"] == "failed" or result.get("params") != config.digest(cell):
        return None
    same_server = result["fingerprint"] == known["fingerprint"] and result["started_at"] >= known["checked_at"]
    has_arrivals = result["arrivals"] is None or Path(cell.path).with_name(result["arrivals"]).exists()
    return result if same_server and has_arrivals else None


def _keep(cell: Cell, attempt: _Attempt) -> None:
    result, folder = attempt.result, Path(cell.path).parent
    arrived, sampled = folder / f"{cell.name}.arrivals.npz", folder / f"{cell.name}.telemetry.csv"
    folder.mkdir(parents=True, exist_ok=True)
    if result["reason"] not in (
        NOT_STARTED,
        UNUSABLE,
    ):  # else what was measured before may count again, with what lies beside it
        set_aside(cell)
        arrived.unlink(missing_ok=True)
        sampled.unlink(missing_ok=True)
    if attempt.run is not None:
        result["arrivals"] = arrived.name
        arrivals.save(attempt.run, arrived)
    if attempt.series is not None:
        result["telemetry"]["series"] = sampled.name
        store.write_text(sampled, attempt.series)
    store.write_cell(cell, result)


def _attempt(config: Config, cell: Cell, known: dict[str, Any]) -> _Attempt:
    server, started_at = config.servers[cell.server], store.utc_now()
    if known["error"]:
        result = _result(config, cell, None, _plan(config, cell, server.capacity))
        reason = UNUSABLE if known.get("started") else NOT_STARTED
        return _Attempt(result | {"started_at": started_at, "status": "failed", "reason": reason})
    capacity = servers.known_capacity(known)
    fits = _plan(config, cell, capacity)
    result = _result(config, cell, known, fits) | {"started_at": started_at}
    if fits.status is not None:
        return _Attempt(result | {"status": fits.status, "reason": fits.reason})
    try:
        boot_id = _bring_up(config, server)
        with telemetry.recording(server, boot_id) as recording:
            up = _find_unchanged(config, server, known)
            result |= _found(up, boot_id)
            fits = _plan(config, cell, up.facts.capacity)  # an engine may size its cache otherwise at each start
            result["plan"] = _plan_json(fits, up.facts.capacity)
            if fits.status is not None:
                return _Attempt(result | {"status": fits.status, "reason": fits.reason})
            measured = measure.run(measure.Task(cell, config.measure, up.engine, up.facts.capacity))
    except measure.Failed as error:
        log.exception("%s failed", cell.name)
        reason = redact.redact_text(_with_death(server, str(error)))
        return _Attempt(result | {"status": "failed", "reason": reason, "finished_at": store.utc_now()})
    return _measured(result, measured, recording)


def _plan(config: Config, cell: Cell, capacity: Capacity) -> Plan:
    return plan(cell, config.measure.max_output_tokens, capacity, config.measure.prompts == "shared")


def _plan_json(fits: Plan, capacity: Capacity) -> dict[str, Any]:
    return {
        "request_tokens": fits.request,
        "kv_needed_tokens": fits.kv_needed,
        "kv_capacity_tokens": fits.kv_has,
        "max_context_tokens": capacity.max_context,
        "max_output_tokens": fits.max_output,
    }


def _bring_up(config: Config, server: Server) -> str | None:
    """Make sure that the server is up; its boot id, if it is ours. Raises measure.Failed; SweepError, which ends the
    sweep, where an only server can't be launched."""
    try:
        state = servers.bring_up(server)
    except SweepError as error:
        if len(config.servers) == 1 and server.launch is not None:
            raise
        raise measure.Failed(str(error)) from error
    return state.boot_id if state else None


def _find_unchanged(config: Config, server: Server, known: dict[str, Any]) -> _Up:
    """The server that is up, still the one that health.json describes. Raises measure.Failed otherwise."""
    engine = engine_for(server, Dialect.from_json(known["requests"]))
    try:
        facts = servers.read_facts(engine)
    except SweepError as error:  # it was up a moment ago: this cell is lost, the next one starts it again
        raise measure.Failed(str(error)) from error
    identity = servers.identity_of(server, facts, known["hardware"])
    changed = [key for key in servers.TOLD_BY_SERVER if identity[key] != known["identity"].get(key)]
    if changed:
        was, now = known["identity"].get(changed[0]), identity[changed[0]]
        advice = f"delete results/servers/{server.name} to measure it anew"
        raise measure.Failed(f"server changed: {changed[0]} was {was!r}, is {now!r}; {advice}")
    return _Up(engine, facts, identity)


def _with_death(server: Server, reason: str) -> str:
    """The reason, led by how the server ended if it did: that is what the person must know first."""
    state = supervisor.ended_server() if server.launch else None
    if state is None:
        return reason
    last = serverstate.last_line(serverstate.log_tail(state.log_path, 1))
    return f"the server ended with {serverstate.ending(state.returncode)} (see {state.log_path}; {last}); {reason}"


def _result(config: Config, cell: Cell, known: dict[str, Any] | None, fits: Plan) -> dict[str, Any]:
    """A cell's JSON before anything was measured."""
    capacity = servers.known_capacity(known) if known else Capacity()
    return {
        "schema": 1,
        "server": cell.server,
        "phase": cell.phase,
        "context_tokens": cell.context,
        "concurrency": cell.concurrency,
        "repeat": cell.repeat,
        "status": "failed",
        "reason": None,
        "flags": [],
        "figures": None,
        "prefill": None,
        "plan": _plan_json(fits, capacity),
        "prompt": None,
        "measure": config.measure.used_by(cell.phase),
        "client": None,
        "telemetry": None,
        "started_at": store.utc_now(),
        "finished_at": store.utc_now(),
        "attempt": failed_attempts(cell) + 1,
        "method": METHOD,
        "params": config.digest(cell),
        "tool_version": VERSION,
        "fingerprint": known["fingerprint"] if known else None,
        "identity": known["identity"] if known else None,
        "kv_capacity_tokens": capacity.kv_tokens,
        "boot_id": None,
        "arrivals": None,
    }


def _found(up: _Up, boot_id: str | None) -> dict[str, Any]:
    return {
        "boot_id": boot_id,
        "kv_capacity_tokens": up.facts.capacity.kv_tokens,
        "identity": up.identity,
        "fingerprint": digest(up.identity),
    }


def _measured(result: dict[str, Any], measured: measure.Measured, recording: telemetry.Recording) -> _Attempt:
    run = measured.run
    window = integration.window_of(run, measured.figures.get("output_tokens")) if run else None
    figures = _figures(measured) | {"telemetry": recording.telemetry(window)}
    return _Attempt(result | figures, run, recording.csv(window))


def _figures(measured: measure.Measured) -> dict[str, Any]:
    return {
        "status": "limited" if measured.limited else "valid",
        "reason": measured.limited,
        "figures": measured.figures,
        "prefill": measured.prefill,
        "flags": measured.flags,
        "evidence": measured.evidence,
        "prompt": measured.prompt,
        "client": measured.client,
        "finished_at": store.utc_now(),
    }

"""The jobs of a sweep: launch, health, one cell. Brings server, measuring and files together for the scripts."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from speedmatrix import METHOD, VERSION, arrivals, hardware, measure, redact, store, supervisor
from speedmatrix.cells import Capacity, Cell, Plan, plan
from speedmatrix.config import Config, Server, canonical, failed_attempts, history_dir
from speedmatrix.engines import Engine, EngineError, Facts, engine_for

KV_TOLERANCE = 0.02  # engines profile their KV cache anew at each start
log = logging.getLogger(__name__)


class SweepError(Exception):
    """The job can't be done; the message is one line for the person."""


def launch_dir(server: Server) -> Path:
    """Where launch.json and health.json of this server, launched exactly so, lie."""
    return Path("results/servers") / server.name / server.digest


def launch(config: Config, name: str, output: Path) -> None:
    """Start the server, or find the one to attach to, and write launch.json.

    With one server in the config a failed start raises SweepError; with several it is written down as `error`.
    """
    server = config.servers[name]
    record: dict[str, Any] = {
        "server": name,
        "launch_command": _launch_command(server),
        "attached": server.launch is None,
        "started_at": store.utc_now(),
        "ready_s": None,
        "error": None,
    }
    try:
        state = bring_up(server)
        if state is not None:
            record |= {"started_at": state.started_at, "ready_s": state.ready_s}
    except SweepError as error:
        if len(config.servers) == 1:
            raise
        record["error"] = str(error)
        store.write_json(history_dir(Cell(name, "prefill", 1)) / f"launch.{_stamp()}.json", record)
    store.write_json(output, record)


def failed_launches(name: str) -> int:
    """How often a launch of this server was written down as failed: its launch rule's param, so that it is retried."""
    return sum(1 for _ in (Path("results/history") / name).glob("launch.*.json"))


def _stamp() -> str:
    return store.utc_now().replace("-", "").replace(":", "")


def bring_up(server: Server) -> supervisor.ServerState | None:
    """Make sure that exactly this server is up; None for one that is only attached to. Raises SweepError."""
    engine = engine_for(server)
    if server.launch is None:
        if not engine.healthy():
            raise SweepError(f"servers.{server.name}: nothing answers at {server.url}: start it, or give `launch`")
        return None
    spec = supervisor.LaunchSpec(
        server=server.name,
        url=server.url,
        command=server.launch.command if isinstance(server.launch.command, str) else list(server.launch.command),
        env=server.launch.env,
        ready_timeout_s=server.launch.ready_timeout_s,
        stop_grace_s=server.launch.stop_grace_s,
        max_launches=server.launch.max_launches,
    )
    try:
        return supervisor.ensure_server(spec, engine.healthy)
    except supervisor.ServerError as error:
        for line in error.log_tail:
            log.error("server: %s", line)
        raise SweepError(str(error)) from error


def health(config: Config, name: str, launched: Path, output: Path) -> None:
    """Read the server's facts and write health.json; with a launch that failed, its error instead."""
    server, record = config.servers[name], store.read_json(launched)
    if record["error"]:
        store.write_json(output, {"server": name, "engine": server.engine, "error": record["error"], "facts": None})
        return
    bring_up(server)
    facts = _facts(engine_for(server))
    machine = _hardware(server)
    identity = _identity(server, facts, machine)
    result = {
        "server": name,
        "engine": server.engine,
        "url": redact.redact_text(server.url),
        "error": None,
        "ready_s": record["ready_s"],
        "checked_at": store.utc_now(),
        "launch_command": record["launch_command"],
        "attached": record["attached"],
        "facts": facts.served,
        "stated": sorted(server.facts),
        "capacity": _capacity_json(facts.capacity),
        "hardware": machine,
        "fingerprint": _fingerprint(identity),
        "identity": identity,
    }
    store.write_json(output, result)


def known_facts(server: Server) -> dict[str, Any]:
    """health.json of this server as it is launched now; without facts where there is none yet."""
    path = launch_dir(server) / "health.json"
    if path.exists():
        return dict(store.read_json(path))
    return {"server": server.name, "engine": server.engine, "error": None, "facts": None}


def _facts(engine: Engine) -> Facts:
    try:
        return engine.facts()
    except EngineError as error:
        raise SweepError(str(error)) from error
    except (KeyError, TypeError, ValueError) as error:
        where, engine_name = f"servers.{engine.server.name}.engine", engine.server.engine
        raise SweepError(f"{where}: {engine.server.url} does not answer as {engine_name} does ({error!r})") from error


def _hardware(server: Server) -> dict[str, Any]:
    return hardware.this_host() if server.hardware is None else server.hardware | {"stated": True}


def _launch_command(server: Server) -> str | None:
    if server.launch is None:
        stated = server.facts.get("launch_command")
        return redact.redact_command(str(stated)) if stated else None
    command = _with_plain_python(server.launch.command)
    assigned = [f"{key}={value}" for key, value in server.launch.env.items()]
    if isinstance(command, str):
        return redact.redact_command(" ".join([*assigned, command]))
    return redact.redact_command([*(["env", *assigned] if assigned else []), *command])


def _with_plain_python(command: tuple[str, ...] | str) -> list[str] | str:
    """The command with `python` for the interpreter's placeholder, as a reader would type it."""
    if isinstance(command, str):
        return command.replace("{python}", "python")
    return [argument.replace("{python}", "python") for argument in command]


def _capacity_json(capacity: Capacity) -> dict[str, Any]:
    known = asdict(capacity)
    known["max_context_tokens"] = known.pop("max_context")
    return known


def _identity(server: Server, facts: Facts, machine: dict[str, Any]) -> dict[str, Any]:
    """What a cell's figures are figures of."""
    keys = ("version", "commit", "model", "revision", "quantization", "parameters", "size_bytes")
    return {
        "engine": server.engine,
        **{key: facts.served.get(key) for key in keys},
        "launch_command": _launch_command(server),
        "max_context_tokens": facts.capacity.max_context,
        "hardware": machine,
        "method": METHOD,
        "tool_version": VERSION,
        "client_host": hardware.client_host(),
    }


def _fingerprint(identity: dict[str, Any]) -> str:
    return hashlib.sha256(canonical(identity).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class _Up:
    """The server as a cell finds it."""

    engine: Engine
    facts: Facts
    identity: dict[str, Any]
    boot_id: str | None


def run_cell(config: Config, cell: Cell, health_file: Path) -> dict[str, Any]:
    """Measure `cell` and write its JSON, arrivals and history; the JSON is returned. A cell that fails is data.

    Raises SweepError for faults that are no result: another sweep at work, an only server that can't start.
    """
    server, known = config.servers[cell.server], store.read_json(health_file)
    try:
        with store.sole_use(server.url):
            result, run = _attempt(config, cell, known)
            _keep(cell, result, run)
    except store.Occupied as error:
        raise SweepError(str(error)) from error
    return result


def _keep(cell: Cell, result: dict[str, Any], run: arrivals.Run | None) -> None:
    beside = Path(cell.path).with_name(f"{cell.name}.arrivals.npz")
    beside.parent.mkdir(parents=True, exist_ok=True)
    if run is None:
        beside.unlink(missing_ok=True)
    else:
        result["arrivals"] = beside.name
        arrivals.save(run, beside)
    store.write_cell(cell, result)


def _attempt(config: Config, cell: Cell, known: dict[str, Any]) -> tuple[dict[str, Any], arrivals.Run | None]:
    server, started_at = config.servers[cell.server], store.utc_now()
    max_output = config.measure.max_output_tokens
    if known["error"]:
        result = _result(config, cell, None, plan(cell, max_output, server.capacity))
        return result | {"started_at": started_at, "status": "failed", "reason": "server did not start"}, None
    capacity = _known_capacity(known)
    fits = plan(cell, max_output, capacity)
    result = _result(config, cell, known, fits) | {"started_at": started_at}
    if fits.status is not None:
        return result | {"status": fits.status, "reason": fits.reason}, None
    try:
        up = _find_unchanged(config, server, known)
        result |= {"boot_id": up.boot_id, "kv_capacity_tokens": up.facts.capacity.kv_tokens}
        measured = measure.run(measure.Task(cell, config.measure, up.engine, capacity))
    except measure.Failed as error:
        log.exception("%s failed", cell.name)
        reason = redact.redact_text(_with_death(server, str(error)))
        return result | {"status": "failed", "reason": reason, "finished_at": store.utc_now()}, None
    return result | _figures(measured), measured.run


def _find_unchanged(config: Config, server: Server, known: dict[str, Any]) -> _Up:
    """The server, up and still the one that health.json describes. Raises measure.Failed otherwise."""
    try:
        state = bring_up(server)
        engine = engine_for(server)
        facts = _facts(engine)
    except SweepError as error:
        if len(config.servers) == 1 and server.launch is not None:
            raise
        raise measure.Failed(str(error)) from error
    identity = _identity(server, facts, known["hardware"])
    changed = [key for key in identity if identity[key] != known["identity"].get(key)]
    if changed:
        was, now = known["identity"].get(changed[0]), identity[changed[0]]
        advice = f"delete results/servers/{server.name} to measure it anew"
        raise measure.Failed(f"server changed: {changed[0]} was {was!r}, is {now!r}; {advice}")
    return _Up(engine, facts, identity, state.boot_id if state else None)


def _with_death(server: Server, reason: str) -> str:
    """The reason, led by how the server ended if it did: that is what the person must know first."""
    state = supervisor.server_state() if server.launch else None
    if state is None or state.status != "exited":
        return reason
    tail = supervisor.log_tail(state, 1)
    last = f", its last line: {tail[-1][:200]}" if tail else ""
    return f"the server ended with code {state.returncode} (see {state.log_path}{last}); {reason}"


def _known_capacity(known: dict[str, Any]) -> Capacity:
    told = dict(known["capacity"])
    told["max_context"] = told.pop("max_context_tokens")
    return Capacity(**told)


def _result(config: Config, cell: Cell, known: dict[str, Any] | None, fits: Plan) -> dict[str, Any]:
    """A cell's JSON before anything was measured."""
    capacity = _known_capacity(known) if known else Capacity()
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
        "plan": {
            "kv_needed_tokens": fits.kv_needed,
            "kv_capacity_tokens": capacity.kv_tokens,
            "max_context_tokens": capacity.max_context,
            "max_output_tokens": fits.max_output,
        },
        "prompt": None,
        "measure": config.measure.used_by(cell.phase),
        "client": None,
        "started_at": store.utc_now(),
        "finished_at": store.utc_now(),
        "attempt": failed_attempts(cell) + 1,
        "method": METHOD,
        "tool_version": VERSION,
        "fingerprint": known["fingerprint"] if known else None,
        "identity": known["identity"] if known else None,
        "kv_capacity_tokens": capacity.kv_tokens,
        "boot_id": None,
        "arrivals": None,
    }


def _figures(measured: measure.Measured) -> dict[str, Any]:
    return {
        "status": "valid",
        "figures": measured.figures,
        "prefill": measured.prefill,
        "flags": measured.flags,
        "prompt": measured.prompt,
        "client": measured.client,
        "finished_at": store.utc_now(),
    }

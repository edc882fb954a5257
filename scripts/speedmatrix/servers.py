"""The server of a sweep's jobs: brought up or found, its facts read, its identity taken."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from speedmatrix import (
    METHOD,
    VERSION,
    hardware,
    hosts,
    launching,
    listeners,
    occupancy,
    redact,
    store,
    supervisor,
    tokenizing,
)
from speedmatrix.cells import Capacity, Cell
from speedmatrix.config import Config, Server
from speedmatrix.dialect import Dialect
from speedmatrix.digests import digest
from speedmatrix.engines import Engine, EngineError, Facts, engine_for, recognised
from speedmatrix.history import history_dir
from speedmatrix.serverstate import LaunchSpec, ServerState

# What is read anew before each cell: where it differs from health.json, another server answers.
TOLD_BY_SERVER = (
    *("version", "commit", "model", "revision", "quantization", "parameters", "size_bytes"),
    "max_context_tokens",
)
log = logging.getLogger(__name__)


class SweepError(Exception):
    """The job can't be done; the message is one line for the person."""


class Unusable(SweepError):
    """What is wrong is this server, and no other one."""


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
        "launch_command": launching.shown(server),
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
        _note_failure(server, record)
    store.write_json(output, record)


def _note_failure(server: Server, record: dict[str, Any]) -> None:
    """Write down a launch that came to nothing, so that the next run tries it again (`failed_launches`)."""
    store.write_json(history_dir(Cell(server.name, "prefill", 1)) / f"launch.{server.digest}.{_stamp()}.json", record)


def failed_launches(name: str, digest: str) -> int:
    """How often exactly this launch was written down as failed: its launch rule's param, so that it is retried."""
    return sum(1 for _ in (Path("results/history") / name).glob(f"launch.{digest}.*.json"))


def _stamp() -> str:
    return store.utc_now().replace("-", "").replace(":", "")


def bring_up(server: Server) -> ServerState | None:
    """Make sure that exactly this server is up; None for one that is only attached to. Raises SweepError."""
    engine = engine_for(server)
    if server.launch is None:
        if not _ready(engine):
            raise Unusable(f"servers.{server.name}: nothing answers at {server.url}: start it, or give `launch`")
        return None
    spec = LaunchSpec(
        server=server.name,
        url=server.url,
        command=server.launch.command if isinstance(server.launch.command, str) else list(server.launch.command),
        env=server.launch.env,
        ready_timeout_s=server.launch.ready_timeout_s,
        stop_grace_s=server.launch.stop_grace_s,
        max_launches=server.launch.max_launches,
    )
    try:
        return supervisor.ensure_server(spec, lambda: _ready(engine))
    except supervisor.ServerError as error:
        for line in error.log_tail:
            log.error("server: %s", line)
        raise Unusable(str(error)) from error


def _ready(engine: Engine) -> bool:
    """Whether the server takes requests. Raises Unusable where it never will, however long one waits."""
    try:
        return engine.healthy()
    except EngineError as error:
        raise Unusable(f"servers.{engine.server.name}: {error}") from error


def health(config: Config, name: str, launched: Path, output: Path) -> None:
    """Read the server's facts and write health.json; where it could not be launched, its error instead.

    So it is too with what is wrong about one of several servers; of an only one that raises SweepError.
    """
    server, record = config.servers[name], store.read_valid(launched, "launch")
    failed = {"server": name, "engine": server.engine, "error": record["error"], "facts": None}
    if record["error"]:
        store.write_json(output, failed)
        return
    try:
        result = _found(config, server, record)
    except Unusable as error:
        if len(config.servers) == 1:
            raise
        log.exception("%s can't be measured", name)
        result = failed | {"error": str(error), "started": True}
        _note_failure(server, record | {"error": str(error)})
    store.write_json(output, result)


def _found(config: Config, server: Server, record: dict[str, Any]) -> dict[str, Any]:
    """health.json of the server that is up. Raises SweepError."""
    state = bring_up(server)
    engine = engine_for(server)
    try:
        with occupancy.sole_use(server.url):
            facts = read_facts(engine)
            asked = time.monotonic()
            dialect = _dialect(engine, config.measure.request)
            first_answer_s = round(time.monotonic() - asked, 3)
    except occupancy.Occupied as error:
        raise SweepError(str(error)) from error
    machine = _hardware(server, state)
    identity = identity_of(server, facts, machine)
    return {
        "server": server.name,
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
        "requests": dialect.as_json(),
        "first_answer_s": first_answer_s,
        "hardware": machine,
        "fingerprint": digest(identity),
        "identity": identity,
    }


def known_facts(server: Server) -> dict[str, Any]:
    """health.json of this server as it is launched now; without facts where there is none yet."""
    path = launch_dir(server) / "health.json"
    if path.exists():
        return store.read_valid(path, "health")
    return {"server": server.name, "engine": server.engine, "error": None, "facts": None}


def read_facts(engine: Engine) -> Facts:
    """The facts that the server tells now. Raises Unusable."""
    try:
        return engine.facts()
    except EngineError as error:
        if error.status not in (404, 405, 501):
            raise Unusable(str(error)) from error
        raise _other_engine(engine, str(error)) from error
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise _other_engine(engine, repr(error)) from error


def _other_engine(engine: Engine, why: str) -> Unusable:
    """The config names an engine that this server is not."""
    stated, looks = engine.server.engine, recognised(engine)
    advice = f"; it looks like {looks}" if looks and looks != stated else ""
    return Unusable(
        f"servers.{engine.server.name}.engine: {engine.server.url} does not answer as {stated} does{advice} ({why})"
    )


def _dialect(engine: Engine, extra: dict[str, Any]) -> Dialect:
    """Which requests the server takes, found out with small ones. Raises Unusable."""
    try:
        return tokenizing.find_dialect(engine, extra)
    except EngineError as error:
        raise Unusable(f"servers.{engine.server.name}: {error}") from error


def _hardware(server: Server, state: ServerState | None) -> dict[str, Any]:
    """What the config states; else this host, if the server is on it; else unknown."""
    if server.hardware is not None:
        return hardware.stated(server.hardware)
    if hardware.elsewhere(None, server.url):
        return hardware.unknown()
    pids = listeners.server_pids(state.boot_id if state else None, hosts.port_of(server.url))
    return hardware.this_host(pids, dict(listeners.environment_of(pids)))


def _capacity_json(capacity: Capacity) -> dict[str, Any]:
    known = asdict(capacity)
    known["max_context_tokens"] = known.pop("max_context")
    return known


def identity_of(server: Server, facts: Facts, machine: dict[str, Any]) -> dict[str, Any]:
    """What a cell's figures are figures of."""
    return {
        "engine": server.engine,
        **{key: facts.served.get(key) for key in TOLD_BY_SERVER[:-1]},
        "launch_command": launching.shown(server),
        TOLD_BY_SERVER[-1]: facts.capacity.max_context,
        "hardware": hardware.lasting(machine),
        "method": METHOD,
        "tool_version": VERSION,
        "client_host": hardware.client_host(),
    }


def known_capacity(known: dict[str, Any]) -> Capacity:
    """The capacity that health.json holds."""
    told = dict(known["capacity"])
    told["max_context"] = told.pop("max_context_tokens")
    return Capacity(**told)

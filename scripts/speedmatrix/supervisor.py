"""The server's process: start, watch, stop, restart; nothing of it outlives the sweep.

A detached supervisor process runs the server, watches the sweep's process (the owner), and ends the whole tree when
that is gone or asks. What is up is written in .speedmatrix/state.json of the working directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from speedmatrix import listeners, processes
from speedmatrix.serverstate import (
    STATE_DIR,
    LaunchSpec,
    ServerState,
    ending,
    failed_launches,
    last_line,
    log_tail,
    note_failed_launches,
    server_state,
    write_state,
)

_POLL_S = 0.1
_SUPERVISOR_END_S = 5.0  # beyond the server's own grace


class ServerError(Exception):
    """The server is not up; the message is one line: what happened, where to look, what to do."""

    def __init__(self, message: str, tail: list[str] | None = None) -> None:
        super().__init__(message)
        self.log_tail = tail or []


def ended_server(patience_s: float = 2.0) -> ServerState | None:
    """The state of a server that ended by itself, as the supervisor notes within a moment; None where it did not."""
    deadline = time.monotonic() + patience_s
    while (state := server_state()) and state.status != "exited":
        if time.monotonic() > deadline:
            return None
        time.sleep(_POLL_S)
    return state


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    STATE_DIR.mkdir(exist_ok=True)
    with (STATE_DIR / "server.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def ensure_server(spec: LaunchSpec, is_ready: Callable[[], bool]) -> ServerState:
    """Return the server that is up with exactly this spec; start it if need be, and wait until `is_ready()`.

    Another server of ours is stopped first: one is up at a time. Raises ServerError.
    """
    owner = os.environ[processes.OWNER_ENV]
    with _locked():
        state = server_state()
        if state and _is_ours(state, spec, owner) and is_ready():
            return state
        if state and state.owner != owner and processes.is_alive(state.owner) and processes.is_alive(state.boot_id):
            raise ServerError(
                f"another sweep in this directory runs {state.server}: wait for its end, or work in another directory"
            )
        _stop(state)
        was_up = state is not None and state.digest == spec.digest and state.owner == owner and bool(state.ready_s)
        return _launch(spec, owner, is_ready, was_up)


def _launch(spec: LaunchSpec, owner: str, is_ready: Callable[[], bool], was_up: bool) -> ServerState:
    """Start it. One that was up in this run and does not come back is tried again: what fails at first, a GPU's memory
    that is not free yet, may go by; a command that never worked does not."""
    while (failed := failed_launches(owner, spec.digest)) < spec.max_launches:
        _refuse_taken_port(spec)
        try:
            up = _start(spec, owner, is_ready)
        except Exception as error:  # `is_ready` raises where no waiting helps
            _stop(server_state())
            note_failed_launches(owner, spec.digest, failed + 1)
            if not was_up or not isinstance(error, ServerError):
                raise
        else:
            note_failed_launches(owner, spec.digest, 0)
            return up
    tail = log_tail(_log_path(spec))
    raise ServerError(
        f"{spec.server} failed to start {failed} times in a row: see {_log_path(spec)}, mend its launch command,"
        f" run again; {last_line(tail)}",
        tail,
    )


def _is_ours(state: ServerState, spec: LaunchSpec, owner: str) -> bool:
    same = state.digest == spec.digest and state.server == spec.server and state.owner == owner
    return same and state.status == "up" and processes.is_alive(state.boot_id)


def _refuse_taken_port(spec: LaunchSpec) -> None:
    parts = urlsplit(spec.url)
    host, port = parts.hostname or "127.0.0.1", parts.port or (443 if parts.scheme == "https" else 80)
    deadline = time.monotonic() + 1.0  # a process that was killed just now may keep its socket a moment longer
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, port), timeout=2).close()
        except OSError:
            return
        time.sleep(_POLL_S)
    raise ServerError(
        f"{host}:{port} is already in use by a program that this sweep did not start{_listener(port)}:"
        " stop it, or leave out `launch` to measure it"
    )


def _listener(port: int) -> str:
    with contextlib.suppress(psutil.Error):
        process = listeners.listening(port)
        return f" (pid {process.pid}, {process.name()})" if process else ""
    return ""


def _log_path(spec: LaunchSpec) -> str:
    return f"logs/server-{spec.server}.log"


def _start(spec: LaunchSpec, owner: str, is_ready: Callable[[], bool]) -> ServerState:
    (STATE_DIR / "state.json").unlink(missing_ok=True)
    Path("logs").mkdir(exist_ok=True)
    began = time.monotonic()
    job = {"spec": asdict(spec), "owner": owner, "log_path": _log_path(spec)}
    job["started_at"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with (STATE_DIR / "supervisor.log").open("ab") as log:
        supervising = subprocess.Popen(
            [sys.executable, "-m", "speedmatrix.supervising"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=processes.importable(os.environ),
            process_group=0,  # not a session of its own: see "In the sweep's session" in docs/decisions.md
        )
    assert supervising.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        supervising.stdin.write(json.dumps(job).encode())
        supervising.stdin.close()
    threading.Thread(target=supervising.wait, daemon=True).start()  # reaps it while this process lives
    while time.monotonic() - began < spec.ready_timeout_s:
        state = server_state()
        if state and state.status == "exited":
            raise _died(spec, state)
        if supervising.poll() is not None:
            raise ServerError(f"{spec.server} could not be started: see {STATE_DIR / 'supervisor.log'}")
        if state and state.status == "starting" and is_ready():
            up = replace(state, status="up", ready_s=round(time.monotonic() - began, 3))
            write_state(up)
            return up
        time.sleep(_POLL_S)
    tail = log_tail(_log_path(spec))
    raise ServerError(
        f"{spec.server} was not ready within {spec.ready_timeout_s:g} s: see {_log_path(spec)},"
        f" or raise launch.ready_timeout_s; {last_line(tail)}",
        tail,
    )


def _died(spec: LaunchSpec, state: ServerState) -> ServerError:
    tail = log_tail(state.log_path)
    return ServerError(
        f"{spec.server} ended at start with {ending(state.returncode)}: see {state.log_path}, mend its launch command,"
        f" run again; {last_line(tail)}",
        tail,
    )


def stop_server() -> None:
    """Stop what this owner, or one that is gone, started; return when its whole process tree is gone."""
    if not (STATE_DIR / "state.json").exists():
        return
    with _locked():
        state = server_state()
        if state and (state.owner == os.environ.get(processes.OWNER_ENV) or not processes.is_alive(state.owner)):
            _stop(state)


def _stop(state: ServerState | None) -> None:
    if state is None:
        return
    deadline = time.monotonic() + state.stop_grace_s + _SUPERVISOR_END_S
    if processes.is_alive(state.boot_id):
        os.kill(processes.pid_of(state.boot_id), signal.SIGTERM)
        while processes.is_alive(state.boot_id) and time.monotonic() < deadline:
            time.sleep(0.02)
    if processes.is_alive(state.boot_id):
        os.kill(processes.pid_of(state.boot_id), signal.SIGKILL)
    processes.end_tagged(state.boot_id, 0)  # what a killed supervisor left
    left = server_state()
    if left and left.status in ("starting", "up"):
        with contextlib.suppress(OSError):  # a full disk must not keep the sweep from its end
            write_state(replace(left, status="stopped"))

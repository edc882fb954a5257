"""`python -m speedmatrix.supervising`: the detached process that runs a server and ends it with the sweep."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from speedmatrix import known, processes, redact
from speedmatrix.config import SOURCE_ENV
from speedmatrix.serverstate import LaunchSpec, ServerState, launch_line, server_state, write_state

_WATCH_S = 0.1
_MAX_LINE = 64 * 1024
_SHORTEST_SECRET = 6
_ENV = re.compile(r"\{env:([A-Za-z_]\w*)\}")


def resolve(text: str) -> str:
    """`text` with {python} and {env:NAME} filled in. KeyError with the variable's name where it is not set."""
    return _ENV.sub(lambda match: os.environ[match[1]], text.replace("{python}", sys.executable))


def secrets_of(spec: LaunchSpec) -> set[str]:
    """Values that must not appear in the server's log: {env:…} ones, what the launch itself holds by a secret's name,
    and those of variables with such a name."""
    texts = [spec.command if isinstance(spec.command, str) else " ".join(spec.command), *spec.env.values()]
    named = {os.environ.get(name, "") for text in texts for name in _ENV.findall(text)}
    own = redact.secrets_in({"command": spec.command, "env": spec.env})
    around = {value for name, value in os.environ.items() if redact.is_secret_name(name)}
    return {value for value in named | own | around if len(value) >= _SHORTEST_SECRET}


def _spawn(spec: LaunchSpec, tag: str, owner: str) -> subprocess.Popen[bytes]:
    if isinstance(spec.command, str):
        command = ["/bin/sh", "-c", resolve(spec.command)]
    else:
        command = [resolve(argument) for argument in spec.command]
    own = {name: resolve(value) for name, value in spec.env.items()}
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**processes.importable(_inherited(owner)), **own, processes.TAG_ENV: tag},
        preexec_fn=processes.die_with_parent,
        process_group=0,
    )


def _inherited(owner: str) -> dict[str, str]:
    """The environment that the sweep was started in: Snakemake limits its jobs to one thread (OMP_NUM_THREADS, …).

    On another host than the sweep's it can't be seen; the job's own is taken without those limits then.
    """
    known = processes.environment_of(owner)
    if known is None:
        known = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    return {name: value for name, value in known.items() if name != SOURCE_ENV}


def _copy_log(source: IO[bytes], log: Path) -> None:
    """The server's output, line by line, through redaction. Ends with the last process that holds the pipe.

    It is read on when it can't be kept (a full disk): a server that nobody listens to would come to a halt.
    """
    with contextlib.suppress(ValueError, OSError):
        while line := source.readline(_MAX_LINE):
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            _note(log, redact.redact_text(text))


def _note(log: Path, line: str) -> None:
    with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def supervise(job: dict[str, Any]) -> None:
    """Run the server until it ends, is asked to (SIGTERM), or the owner is gone; then end its whole tree."""
    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: asked.set())
    processes.adopt_orphans()
    spec, owner, tag = LaunchSpec(**job["spec"]), job["owner"], processes.identity()
    known.know(secrets_of(spec))
    state, log = _starting(spec, job, tag), Path(job["log_path"])
    _note(log, launch_line(job["started_at"], redact.redact_command(spec.command)))
    try:
        child = _spawn(spec, tag, owner)
    except (OSError, KeyError) as error:
        _note(log, f"{spec.server} can't be started: {_cause(error)}")
        write_state(replace(state, status="exited", returncode=127))
        return
    write_state(replace(state, pid=child.pid))
    assert child.stdout is not None
    copying = threading.Thread(target=_copy_log, args=(child.stdout, log), daemon=True)
    copying.start()
    while not asked.is_set() and processes.is_alive(owner) and child.poll() is None:
        asked.wait(_WATCH_S)
    by_itself = child.poll()
    processes.end_tagged(tag, spec.stop_grace_s)
    copying.join(1.0)
    _write_end(tag, by_itself)


def _starting(spec: LaunchSpec, job: dict[str, Any], tag: str) -> ServerState:
    return ServerState(
        server=spec.server,
        digest=spec.digest,
        owner=job["owner"],
        boot_id=tag,
        pid=None,
        status="starting",
        started_at=job["started_at"],
        log_path=job["log_path"],
        stop_grace_s=spec.stop_grace_s,
    )


def _write_end(tag: str, by_itself: int | None) -> None:
    """Note the end, unless a newer supervisor's state is there already."""
    state = server_state()
    if state is not None and state.boot_id == tag:
        with contextlib.suppress(OSError):
            write_state(replace(state, status="stopped" if by_itself is None else "exited", returncode=by_itself))


def _cause(error: OSError | KeyError) -> str:
    if isinstance(error, KeyError):
        return f"the variable {error.args[0]} is not set"
    return f"{error.strerror}: {shlex.quote(str(error.filename))}"


if __name__ == "__main__":
    try:
        supervise(json.load(sys.stdin))
    except Exception:
        processes.end_tagged(processes.identity(), 0)
        said = redact.redact_text(traceback.format_exc())
        print(time.strftime("%FT%TZ", time.gmtime()), said, file=sys.stderr, flush=True)
        sys.exit(1)

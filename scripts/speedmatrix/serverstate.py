"""A server's start and state as they are kept in .speedmatrix/state.json, and the end of its log."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from speedmatrix import untrusted

STATE_DIR = Path(".speedmatrix")
_LAUNCH_LINE = re.compile(r"^--- \d{4}-\d\d-\d\dT\S+Z .*$", re.MULTILINE)


@dataclass(frozen=True)
class LaunchSpec:
    """How to start a server; `command` and `env` still hold their placeholders. Times in seconds."""

    server: str
    url: str
    command: list[str] | str
    env: dict[str, str]
    ready_timeout_s: float
    stop_grace_s: float
    max_launches: int

    @property
    def digest(self) -> str:
        """12 hex digits that change with what is started."""
        what = json.dumps([self.command, self.env, self.url], sort_keys=True)
        return hashlib.sha256(what.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class ServerState:
    """The server as state.json tells it. `boot_id` names its supervisor: `pid:start time`, new at each start."""

    server: str
    digest: str
    owner: str
    boot_id: str
    pid: int | None
    status: str  # starting, up, exited (by itself), stopped (by us)
    started_at: str
    log_path: str
    stop_grace_s: float
    ready_s: float | None = None
    returncode: int | None = None


def server_state() -> ServerState | None:
    """What state.json says now; None where nothing was ever started, or the file is damaged."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        state = ServerState(**json.loads((STATE_DIR / "state.json").read_text(encoding="utf-8")))
        return state if _is_sound(state) else None
    return None


def _is_sound(state: ServerState) -> bool:
    """Whether all that is acted upon is of its type; processes are signalled by what stands here."""
    texts = (state.server, state.digest, state.owner, state.boot_id, state.status, state.log_path)
    if not all(isinstance(text, str) for text in texts):
        return False
    processes = all(re.fullmatch(r"\d+:(\d+|None)", who) for who in (state.owner, state.boot_id))
    return processes and isinstance(state.stop_grace_s, int | float) and isinstance(state.returncode, int | None)


def write_state(state: ServerState) -> None:
    """Write state.json, whole."""
    temporary = STATE_DIR / f"state.{os.getpid()}.tmp"
    temporary.write_text(json.dumps(asdict(state), indent=1), encoding="utf-8")
    temporary.replace(STATE_DIR / "state.json")


def failed_launches(owner: str, digest: str) -> int:
    """How many launches of exactly this have failed in a row in the owner's run; a damaged file is as none."""
    failed = _failures(owner).get(digest, 0)
    return failed if isinstance(failed, int) else 0


def note_failed_launches(owner: str, digest: str, failed: int) -> None:
    """Keep that number, where there is anything to keep and room for it."""
    kept = _failures(owner)
    if kept.get(digest, 0) != failed:
        with contextlib.suppress(OSError):
            _failures_path().write_text(json.dumps(kept | {digest: failed}), encoding="utf-8")


def _failures_path() -> Path:
    return STATE_DIR / "failed_launches.json"


def _failures(owner: str) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        kept = json.loads(_failures_path().read_text(encoding="utf-8"))
        if isinstance(kept, dict) and kept.get("owner") == owner:
            return kept
    return {"owner": owner}


def ending(returncode: int | None) -> str:
    """A process's end in words: `code 3`, or `signal 9 (SIGKILL)`."""
    if returncode is not None and returncode < 0:
        return f"signal {-returncode} ({signal.Signals(-returncode).name})"
    return f"code {returncode}"


def launch_line(started_at: str, command: str) -> str:
    """What the supervisor writes into a server's log ahead of each launch's own words."""
    return f"--- {started_at} {' '.join(command.splitlines())}"


def log_tail(path: str, lines: int = 10) -> list[str]:
    """The last `lines` lines, printable, that the newest launch printed into a log file; empty where there is none."""
    try:
        with Path(path).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    of_newest = _LAUNCH_LINE.split(text)[-1]
    printable = [untrusted.line(line, 1000) for line in of_newest.splitlines()]
    return [line for line in printable if line][-lines:]


def last_line(tail: list[str]) -> str:
    """The end of a sentence about a server that ended: its last line, or that there is none."""
    return f"its last line: {tail[-1][:200]}" if tail else "it printed nothing"

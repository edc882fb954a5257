"""Processes told apart beyond their pid: identity by start time, a tag in the environment, an end for a whole tree."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

TAG_ENV = "SPEEDMATRIX_SERVER"
OWNER_ENV = "SPEEDMATRIX_OWNER"  # of the sweep's own process, for all that it starts
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def _start_time(pid: int) -> int | None:
    """Clock ticks since boot at which the process started; None where it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def identity(pid: int | None = None) -> str:
    """`pid:start time` of a process (default: this one): a pid that is used again is another identity."""
    pid = pid or os.getpid()
    return f"{pid}:{_start_time(pid)}"


def pid_of(who: str) -> int:
    """The pid of an identity."""
    return int(who.partition(":")[0])


def is_alive(who: str | None) -> bool:
    """Whether the process of this identity still runs."""
    if not who or who.endswith(":None"):
        return False
    return identity(pid_of(who)) == who


def environment_of(who: str | None) -> dict[str, str] | None:
    """The environment that the process of this identity was started with; None where it is gone or not ours to see."""
    if not is_alive(who):
        return None
    try:
        raw = Path(f"/proc/{pid_of(str(who))}/environ").read_bytes()
    except OSError:
        return None
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if b"=" in entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def importable(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` with this library importable in a child process."""
    here = str(Path(__file__).parents[1])
    paths = [here, *filter(None, [environment.get("PYTHONPATH")])]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}


def adopt_orphans() -> None:
    """Become the parent of grandchildren whose parent ends, so that they can be reaped."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Called in a child before exec: it is killed when the parent's thread that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def tagged(tag: str) -> list[int]:
    """Pids of all live processes that carry `tag` in their environment, in whatever session they are."""
    wanted = f"{TAG_ENV}={tag}".encode()
    found = []
    for name in (entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            if wanted in environment and _start_time(int(name)) is not None:
                found.append(int(name))
    return found


def end_tagged(tag: str, grace_s: float) -> None:
    """SIGTERM to all processes of the tag, SIGKILL after `grace_s` seconds; return when none is left."""
    deadline = time.monotonic() + grace_s
    asked: set[int] = set()
    while pids := tagged(tag):
        late = time.monotonic() >= deadline
        for pid in pids:
            if late or pid not in asked:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
                asked.add(pid)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)

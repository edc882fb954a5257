"""The processes behind a server's address on this host: who listens there, what it belongs to, and all below it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping

import psutil

from speedmatrix import processes

# What a command line has in it that starts an engine.
_ENGINES = re.compile(
    r"(?:^|[/\s])(?:vllm|sglang|llama-server)(?:\s|$)|vllm\.entrypoints|sglang\.|speedmatrix\.embedded"
)
# Programs that only hand a port on: the server is elsewhere, or not to be seen from here.
_FORWARDERS = frozenset(["ssh", "docker-proxy", "rootlessport", "kubectl", "socat", "nginx", "haproxy", "envoy"])


def listening(port: int) -> psutil.Process | None:
    """The process that listens on a port of this host; None where none does, or it is not ours to see."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == "LISTEN" and connection.laddr[1:2] == (port,) and connection.pid:
                return psutil.Process(connection.pid)
    return None


def engine_above(process: psutil.Process) -> psutil.Process | None:
    """This process or the nearest above it that starts an engine: workers rename themselves. Raises psutil.Error."""
    for candidate in (process, *process.parents()):
        if _ENGINES.search(" ".join(candidate.cmdline())):
            return candidate
    return None


def server_pids(tag: str | None, port: int) -> set[int]:
    """Pids of all processes of a server: those of its tag if it was launched, else what listens and all below it."""
    if tag:
        return set(processes.tagged(tag))
    with contextlib.suppress(psutil.Error, OSError):
        process = listening(port)
        if process is not None and process.name() not in _FORWARDERS:
            top = engine_above(process) or process
            return {top.pid, *(child.pid for child in top.children(recursive=True))}
    return set()


def environment_of(pids: set[int]) -> Mapping[str, str]:
    """The variables that these processes were started with, the first one's where they differ.

    A launching shell may set one only for what it starts, and an engine for each of its workers another value.
    """
    known: dict[str, str] = {}
    for pid in sorted(pids):
        known = {**(processes.environment_of(processes.identity(pid)) or {}), **known}
    return known


def memory_bytes(pids: set[int]) -> int | None:
    """Resident memory of the processes together, pages that they share counted in each; None where none is seen."""
    sizes = []
    for pid in pids:
        with contextlib.suppress(psutil.Error, OSError):
            sizes.append(int(psutil.Process(pid).memory_info().rss))
    return sum(sizes) if sizes else None

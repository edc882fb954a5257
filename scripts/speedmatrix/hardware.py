"""The machine behind the server: GPUs, CPU and system, as detected or as stated. No serial numbers, no host name."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Set
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from speedmatrix import gpus, hosts, machine
from speedmatrix.nvidia import Lost, NoGpus

# Every key of a `hardware`, in the page's order; None where it is not known.
KEYS = (
    *("type", "gpu", "gpu_count", "vram", "driver", "cuda", "gpus", "gpus_used", "gpus_absent"),
    *("cpu", "cores", "threads", "memory_gb", "os", "os_name", "kernel", "architecture", "python", "numa_nodes"),
    *("governor", "governor_driver", "cpu_max_mhz", "boost", "container", "vm", "at_rest", "stated"),
)
# What is otherwise at each look, or follows from what runs: no part of what the machine is.
PASSING = ("at_rest", "gpus_used", "gpus_absent")


def client_host() -> str:
    """A short hash that tells hosts apart without naming them."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def elsewhere(stated: dict[str, Any] | None, url: str) -> str | None:
    """Why this host's devices are not those of the server at `url`; None where they are. `stated`: by the config."""
    if stated is not None:
        return "the config states the server's hardware: it is taken to be on another machine"
    return None if hosts.is_this_host(urlsplit(url).hostname or "") else "the server is not on this host"


def unknown() -> dict[str, Any]:
    """The hardware of a server elsewhere of which nothing is stated."""
    return dict.fromkeys(KEYS) | {"stated": False}


def stated(given: dict[str, Any]) -> dict[str, Any]:
    """The hardware that the config states, marked as that."""
    return unknown() | given | {"stated": True}


def lasting(hardware: dict[str, Any]) -> dict[str, Any]:
    """The part of a hardware that stays as it is: what figures are figures of."""
    return {key: value for key, value in hardware.items() if key not in PASSING}


def this_host(pids: Set[int] = frozenset(), environment: dict[str, str] | None = None) -> dict[str, Any]:
    """GPUs, CPU, memory and system of this host; `pids`: the server's processes, which tell which GPUs it uses."""
    host = {**dict.fromkeys(KEYS), **_machine(), "stated": False}
    try:
        found = gpus.find()
    except NoGpus as error:
        return host | _none(str(error), host["cpu"])
    listed = [found.facts(index) for index in range(found.count)]
    used = gpus.used(found, pids, environment or {})
    at_rest = [_at_rest(found, index, pids) for index in range(found.count)]
    more = {"gpus": listed, "gpus_used": {"indexes": list(used.indexes), "by": used.by}, "at_rest": at_rest}
    return host | found.system() | _in_short(listed) | more


@cache
def _machine() -> dict[str, Any]:
    return machine.facts()


def _none(why: str, cpu: str | None) -> dict[str, Any]:
    """A host without a GPU that can be asked; Apple's chips have one of their own, which shares the memory."""
    apple = sys.platform == "darwin" and platform.machine() == "arm64"
    kind = {"type": "Apple Silicon", "gpu": cpu, "gpu_count": 1} if apple else {"type": "CPU only", "gpu_count": 0}
    return {"gpus": [], "gpus_absent": why, **kind}


def _in_short(listed: list[dict[str, Any]]) -> dict[str, Any]:
    """`8`, `RTX PRO 6000 Blackwell Server Edition`, `768 GB (8 × 96 GB)`: what the page's first lines say."""
    sizes = [round(gpu["memory_bytes"] / 2**30) for gpu in listed if gpu["memory_bytes"]]
    each = f" ({len(listed)} × {sizes[0]} GB)" if len(sizes) == len(listed) > 1 and len(set(sizes)) == 1 else ""
    names = [gpu["name"].removeprefix("NVIDIA ") for gpu in listed if gpu["name"]]
    return {
        "type": "Discrete GPU",
        "gpu": ", ".join(dict.fromkeys(names)) or None,
        "gpu_count": len(listed),
        "vram": f"{sum(sizes)} GB{each}" if sizes else None,
    }


def _at_rest(found: gpus.Gpus, index: int, pids: Set[int]) -> dict[str, Any]:
    """A GPU while the server waits: its clocks, power, memory, what slows it down, and others' processes on it."""
    try:
        reading, lost = found.read(index), None
    except Lost as error:
        reading, lost = None, str(error)
    names = ("power_w", "temp_c", "sm_clock_mhz", "mem_clock_mhz", "memory_used_bytes", "throttle")
    told = {name: getattr(reading, name, None) for name in names}
    return {"index": index, **told, **_others(found.processes(index), pids), "lost": lost}


def _others(running: dict[int, int | None] | None, pids: Set[int]) -> dict[str, Any]:
    """How many processes that are not the server's compute on a GPU, and their bytes of its memory.

    None where the driver lists none of the server's own: then its pids, those of a host outside, tell nothing.
    """
    if running is None or (running and pids.isdisjoint(running)):
        return {"others": None, "others_bytes": None}
    sizes = [size for pid, size in running.items() if pid not in pids]
    return {"others": len(sizes), "others_bytes": None if None in sizes else sum(size or 0 for size in sizes)}

"""The machine behind the server: what the page's Hardware section says."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from typing import Any

import cpuinfo
import psutil
import pynvml


def client_host() -> str:
    """A short hash that tells hosts apart without naming them."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def nvidia_gpus() -> list[tuple[str, int]]:
    """(name, bytes of memory) of each NVIDIA GPU of this host; empty where there is none."""
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [(pynvml.nvmlDeviceGetName(gpu), pynvml.nvmlDeviceGetMemoryInfo(gpu).total) for gpu in handles]
    except pynvml.NVMLError:
        return []


def _gpu_facts(gpus: list[tuple[str, int]]) -> dict[str, Any]:
    if not gpus:
        return {"type": "CPU only", "gpu": None, "gpu_count": 0, "vram": None}
    sizes = [round(memory / 2**30) for _, memory in gpus]
    each = f" ({len(gpus)} × {sizes[0]} GB)" if len(gpus) > 1 and len(set(sizes)) == 1 else ""
    return {
        "type": "Discrete GPU",
        "gpu": ", ".join(dict.fromkeys(name.removeprefix("NVIDIA ") for name, _ in gpus)),
        "gpu_count": len(gpus),
        "vram": f"{sum(sizes)} GB{each}",
    }


@cache
def this_host() -> dict[str, Any]:
    """GPUs, CPU, memory and system of this host, as detected."""
    return {
        **_gpu_facts(nvidia_gpus()),
        "cpu": cpuinfo.get_cpu_info().get("brand_raw") or platform.processor() or platform.machine(),
        "cores": psutil.cpu_count(logical=False) or psutil.cpu_count(),
        "threads": psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "os": platform.system().lower(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "stated": False,
    }

"""The host beside its GPUs: CPU, memory, system, and what it runs inside of. Without root; nothing names it."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

SYS, PROC = Path("/sys"), Path("/proc")
# What the cgroup of a container's first process is called, by the container's kind.
_CONTAINERS = {"kubepods": "Kubernetes", "docker": "Docker", "podman": "Podman", "libpod": "Podman", "lxc": "LXC"}


def facts() -> dict[str, Any]:
    """CPU, memory and system of this host, as detected; None where it does not tell. Takes a second."""
    import cpuinfo  # here, since importing it runs programs: every cell's job would

    return {
        "cpu": cpuinfo.get_cpu_info().get("brand_raw") or platform.processor() or platform.machine(),
        "cores": psutil.cpu_count(logical=False) or psutil.cpu_count(),
        "threads": psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "os": platform.system().lower(),
        "os_name": _os_name(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "numa_nodes": len(list((SYS / "devices/system/node").glob("node[0-9]*"))) or None,
        **cpu_frequency(SYS / "devices/system/cpu"),
        "container": container(Path("/"), PROC, os.environ),
        "vm": vm(PROC, SYS),
    }


def _os_name() -> str | None:
    """`Debian GNU/Linux 12 (bookworm)`, `macOS 15.1`."""
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    with contextlib.suppress(OSError):
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    return None


def _text(path: Path) -> str | None:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").strip()
    return None


def cpu_frequency(root: Path) -> dict[str, Any]:
    """What governs the clocks of the CPUs below `root`: governor and driver, highest MHz, whether boost is on."""
    governors = sorted({text for file in root.glob("cpu[0-9]*/cpufreq/scaling_governor") if (text := _text(file))})
    highest = [int(text) for file in root.glob("cpu[0-9]*/cpufreq/cpuinfo_max_freq") if (text := _text(file))]
    no_turbo, boost = _text(root / "intel_pstate/no_turbo"), _text(root / "cpufreq/boost")
    return {
        "governor": ", ".join(governors) or None,
        "governor_driver": _text(root / "cpu0/cpufreq/scaling_driver"),
        "cpu_max_mhz": max(highest) // 1000 if highest else None,
        "boost": no_turbo == "0" if no_turbo else boost == "1" if boost else None,
    }


def container(root: Path, proc: Path, environment: Mapping[str, str]) -> str | None:
    """The kind of container that this process runs in; None outside of one."""
    cgroup = _text(proc / "1/cgroup") or ""
    for word, kind in _CONTAINERS.items():
        if word in cgroup:
            return kind
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "Kubernetes"
    if (root / "run/.containerenv").exists():
        return "Podman"
    return "Docker" if (root / ".dockerenv").exists() else None


def vm(proc: Path, sys_root: Path) -> str | None:
    """The virtual machine's maker, `unknown kind` where only the CPU says that it is one; None on bare metal."""
    cpu = _text(proc / "cpuinfo") or ""
    if not any(" hypervisor" in line for line in cpu.splitlines() if line.startswith("flags")):
        return None
    return _text(sys_root / "class/dmi/id/sys_vendor") or _text(sys_root / "hypervisor/type") or "unknown kind"

"""Settings of a machine that make its results unlike those of others with the same devices. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from speedmatrix.readings import HARDWARE, THERMAL

_Gpu = dict[str, Any]
_Rule = tuple[Callable[[_Gpu], str | None], str, str]  # what is said of a GPU, what it means, what to do


@dataclass(frozen=True)
class Unusual:
    """A finding: `what` is so, in one sentence with its own numbers; what it means for the figures; what to do."""

    what: str
    meaning: str
    advice: str


def unusual(hardware: dict[str, Any]) -> list[Unusual]:
    """All findings about a health.json's `hardware`; none where nothing, or nothing of the kind, is known."""
    listed = hardware.get("gpus")
    if not isinstance(listed, list):  # of an older version, or stated in free words
        return []
    at_rest = hardware.get("at_rest") or []
    return [*_findings(listed, _RULES), *_findings(at_rest, _RULES_AT_REST), *_cpu(hardware)]


def _grouped(listed: list[_Gpu], what: Callable[[_Gpu], str | None]) -> Iterator[tuple[str, str]]:
    """(`GPU 3` or `GPUs 0, 1, 2`, what is said of each of them), for all of whom something is said."""
    groups: dict[str, list[int]] = defaultdict(list)
    for gpu in listed:
        if said := what(gpu):
            groups[said].append(gpu["index"])
    for said, indexes in groups.items():
        yield f"GPU{'s' if len(indexes) > 1 else ''} {', '.join(map(str, indexes))}", said


def _findings(listed: list[_Gpu], rules: list[_Rule]) -> Iterator[Unusual]:
    for what, meaning, advice in rules:
        for which, said in _grouped(listed, what):
            yield Unusual(f"{which}: {said}.", meaning, advice)


def _power(gpu: _Gpu) -> str | None:
    limit, usual = gpu.get("power_limit_w"), gpu.get("power_default_w")
    if not limit or not usual or abs(limit - usual) < 1:
        return None
    side = "below" if limit < usual else "above"
    return f"power limit {limit:.0f} W, {side} the default of {usual:.0f} W"


def _clocks(gpu: _Gpu) -> str | None:
    told, usual = gpu.get("sm_clock_set_mhz"), gpu.get("sm_clock_default_mhz")
    return f"SM clock set to {told} MHz instead of {usual} MHz" if told and usual and told != usual else None


def _offsets(gpu: _Gpu) -> str | None:
    offsets = {"SM": gpu.get("sm_clock_offset_mhz"), "memory": gpu.get("mem_clock_offset_mhz")}
    said = [f"{name} clock {value:+d} MHz" for name, value in offsets.items() if value]
    return f"{' and '.join(said)} off its curve" if said else None


def _pcie(gpu: _Gpu) -> str | None:
    width, most = gpu.get("pcie_width"), gpu.get("pcie_width_max")
    return f"{width} PCIe lanes of {most}" if width and most and width < most else None


def _mig(gpu: _Gpu) -> str | None:
    return f"cut into MIG slices, {len(gpu.get('mig_slices') or [])} at present" if gpu.get("mig") else None


_RULES: list[_Rule] = [
    (
        _power,
        "Speed and energy under load differ from those of the same GPU at its default limit.",
        "Say so where figures are compared, or set the default with nvidia-smi -pl.",
    ),
    (
        _clocks,
        "The GPU does not choose its clocks as others of its kind do.",
        "nvidia-smi -rac and -rgc hand the clocks back to the driver.",
    ),
    (
        _offsets,
        "The GPU is over- or underclocked: speed and energy are its own.",
        "Set the offsets to 0, or say so where figures are compared.",
    ),
    (
        lambda gpu: "ECC is off" if gpu.get("ecc") is False else None,
        "Memory is a little faster and larger than with ECC on, and its errors go unnoticed.",
        "nvidia-smi -e 1 and a restart turn it on, as servers usually have it.",
    ),
    (
        lambda gpu: "persistence mode is off" if gpu.get("persistence") is False else None,
        "The driver may unload while no program uses the GPU: the server's start takes longer.",
        "nvidia-smi -pm 1, or the service nvidia-persistenced, keeps it loaded.",
    ),
    (
        _pcie,
        "Loading, and traffic between GPUs without NVLink, is slower than in a full slot.",
        "Look whether slot, riser and BIOS give the GPU all its lanes.",
    ),
    (
        _mig,
        "The server has a part of the GPU, and others may work on the rest; its energy can't be told apart.",
        "Compare only with the same slice, or turn MIG off with nvidia-smi -mig 0.",
    ),
]


def _shared(gpu: _Gpu) -> str | None:
    if not gpu.get("others"):
        return None
    size = gpu.get("others_bytes")
    memory = f" in {size / 2**30:.1f} GB of its memory" if size else ""
    return f"{gpu['others']} other process{'es' if gpu['others'] > 1 else ''} at work{memory}"


def _slowed(gpu: _Gpu) -> str | None:
    words = [word for word in (HARDWARE, THERMAL) if word in (gpu.get("throttle") or "").split("+")]
    return f"{' and '.join(words)} at rest, at {gpu['temp_c']} °C" if words else None


def _silent(gpu: _Gpu) -> str | None:
    return f"does not answer ({gpu['lost']})" if gpu.get("lost") else None


_RULES_AT_REST: list[_Rule] = [
    (
        _shared,
        "What they take of the GPU is missing in these figures, and is in its power and energy.",
        "End the other programs, or say so where figures are compared.",
    ),
    (
        _slowed,
        "The GPU is slowed down before any load: under load it will be too.",
        "Look after cooling, power supply and cabling before figures are published.",
    ),
    (
        _silent,
        "The driver has lost the GPU: a server that uses it fails, and one that does not has fewer than it seems.",
        "Look for its Xid error in the kernel's log; a restart of the host may bring it back.",
    ),
]


def _cpu(hardware: dict[str, Any]) -> Iterator[Unusual]:
    if "powersave" in (hardware.get("governor") or "").split(", "):
        driver = f" ({hardware['governor_driver']})" if hardware.get("governor_driver") else ""
        yield Unusual(
            f"The CPU's governor is {hardware['governor']}{driver}.",
            "Clocks rise late or not at all: tokenizing, scheduling and CPU inference are slower.",
            "cpupower frequency-set -g performance gives the CPU its full speed.",
        )
    if hardware.get("boost") is False:
        highest = f" of {hardware['cpu_max_mhz']:,} MHz" if hardware.get("cpu_max_mhz") else ""
        yield Unusual(
            f"The CPU's boost is off{highest and ', at a highest clock' + highest}.",
            "A single thread, such as the server's scheduler, runs slower than on the same CPU elsewhere.",
            "Turn turbo or boost on in the BIOS or below /sys/devices/system/cpu.",
        )

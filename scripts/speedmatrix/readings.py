"""What a device says at one moment, and the CSV beside a cell that a series of it is kept in. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

SECOND = 1_000_000_000
HOST = "host"  # the device whose readings are of the CPU and of the server's processes
MARGIN_S = 5  # of the series before and after the window, that is kept

# What slows a device down, the worst first; a reading that names none of them says NOT_SLOWED.
HARDWARE, THERMAL, POWER = "hardware slowdown", "thermal", "power-capped"
SLOWDOWNS = (HARDWARE, THERMAL, POWER)
CLOCKS_SET, NOT_SLOWED = "clocks set", "none"


@dataclass(frozen=True)
class Reading:
    """One device at one moment of CLOCK_MONOTONIC; None where it does not tell.

    `energy_j` counts from some moment before the series. Of `host`, power, energy, temperature and load are the CPU's
    and the memory is that of the server's processes. `throttle`: what slows it down, joined by `+`.
    """

    t_ns: int
    device: str
    power_w: float | None = None
    energy_j: float | None = None
    temp_c: float | None = None
    sm_clock_mhz: float | None = None
    mem_clock_mhz: float | None = None
    util_pct: float | None = None
    memory_used_bytes: int | None = None
    pcie_rx_mb_s: float | None = None
    pcie_tx_mb_s: float | None = None
    throttle: str | None = None


NAMES = [field.name for field in fields(Reading)]


def answers(calls: Mapping[str, Callable[[], Any]]) -> tuple[dict[str, Any], dict[str, Exception]]:
    """The answer of each call by its name, None where it raised; and what it raised.

    A driver's binding may raise anything: an old library lacks a function, a device has no such sensor, a GPU is lost.
    """
    told: dict[str, Any] = dict.fromkeys(calls)
    raised: dict[str, Exception] = {}
    for name, call in calls.items():
        try:
            told[name] = call()
        except Exception as error:
            raised[name] = error
    return told, raised


def to_csv(series: Iterable[Reading], t0_ns: int, t1_ns: int) -> str:
    """The series around the window [t0, t1) as CSV: seconds since t0, then each reading's own columns."""
    margin = MARGIN_S * SECOND
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["t_s", *NAMES])
    for one in series:
        if t0_ns - margin <= one.t_ns <= t1_ns + margin:
            table.writerow([f"{(one.t_ns - t0_ns) / SECOND:.4f}", *map(_shown, asdict(one).values())])
    return text.getvalue()


def _shown(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value

"""The CPU's power, temperature and load, as Linux tells them without root."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

POWERCAP, HWMON = Path("/sys/class/powercap"), Path("/sys/class/hwmon")
_CPU_SENSORS = frozenset(["coretemp", "k10temp", "zenpower", "cpu_thermal"])  # drivers of a CPU's own sensor


@dataclass
class _Zone:
    """A counter of µJ that starts anew at `range_uj`."""

    file: Path
    range_uj: int
    last_uj: int
    total_uj: int = 0

    def rise(self) -> int:
        """µJ since the first reading. Raises OSError or ValueError."""
        now = int(self.file.read_text())
        self.total_uj += (now - self.last_uj) % self.range_uj
        self.last_uj = now
        return self.total_uj


class Rapl:
    """The energy of all CPU packages and of the memory beside them; `why` says why there is none."""

    def __init__(self, root: Path = POWERCAP) -> None:
        self._zones: list[_Zone] = []
        self.why: str | None = None
        try:
            # Packages and memory only: a package holds its cores, and `psys` would hold both a second time.
            for zone in sorted(root.glob("intel-rapl:*")):
                if (zone / "name").read_text().strip().startswith(("package", "dram")):
                    counter = zone / "energy_uj"
                    span = int((zone / "max_energy_range_uj").read_text()) + 1
                    self._zones.append(_Zone(counter, span, int(counter.read_text())))
        except (OSError, ValueError) as error:
            self.why, self._zones = f"RAPL can't be read: {getattr(error, 'strerror', None) or error}", []
        if not self._zones and not self.why:
            self.why = "this host has no RAPL"

    def energy_j(self) -> float | None:
        """Joules since this was made. A counter that started anew since the last call is followed across that."""
        if not self._zones:
            return None
        try:
            return sum(zone.rise() for zone in self._zones) / 1e6
        except (OSError, ValueError):
            return None


class CpuTemperature:
    """The hottest of the CPU's own sensors."""

    def __init__(self, root: Path = HWMON) -> None:
        self._files: list[Path] = []
        for sensor in sorted(root.glob("hwmon*")):
            with contextlib.suppress(OSError):
                if (sensor / "name").read_text().strip() in _CPU_SENSORS and (sensor / "temp1_input").exists():
                    self._files.append(sensor / "temp1_input")  # the package's, or the one that counts

    def celsius(self) -> float | None:
        """Now; None where there is no such sensor."""
        told = []
        for file in self._files:
            with contextlib.suppress(OSError, ValueError):
                told.append(int(file.read_text()) / 1000)
        return max(told, default=None)

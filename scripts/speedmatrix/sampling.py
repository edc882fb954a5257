"""`python -m speedmatrix.sampling`: reads GPUs and CPU every 0.1 s until its standard input ends.

A process of its own, so that nothing that a driver does can stop or delay the measuring one. Each line of its output is
a JSON object, what is known about the devices, or a JSON list, one reading.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import select
import sys
import time
from dataclasses import astuple
from typing import Any

import psutil

from speedmatrix import gpus, listeners, processes
from speedmatrix.nvidia import Lost, NoGpus
from speedmatrix.readings import HOST, Reading
from speedmatrix.sensors import CpuTemperature, Rapl

PERIOD_S = 0.1
LONGEST_S = 0.5
_BUSY = 20  # a round's CPU time, times this, is the time to the next, up to LONGEST_S: mostly under 5 % of a core
_PCIE_EVERY = 4  # rounds: the driver takes 40 ms for one GPU's
_LOOK_EVERY_S, _LOOK_BUSY = 5.0, 100  # for new processes of the server; a search that takes long is made less often


class Sampler:
    """One round after another over all devices."""

    def __init__(self, tag: str | None, port: int, found: gpus.Gpus | None, why: str | None = None) -> None:
        self._tag, self._port, self._gpus = tag, port, found
        self._live = set(range(found.count)) if found else set()
        self._rapl, self._temperature = Rapl(), CpuTemperature()
        self._pids: set[int] = set()
        self._look_at_s = float("-inf")
        self._rounds = 0
        self._used = gpus.Used((), "")
        self._sliced: list[int] = []
        self._told: dict[str, Any] = {}
        self._why: dict[str, Any] = {"gpus": why} if why else {}
        psutil.cpu_percent()  # the load is of the time since the call before

    def round(self) -> list[Any]:
        """What to write after reading every device once: what became known about them, if anything, and readings."""
        turn = self._rounds // _PCIE_EVERY if self._rounds % _PCIE_EVERY == 0 else None
        readings = [self._host(), *self._gpu_readings(turn)]
        self._rounds += 1
        known: dict[str, Any] = {"source": self._gpus.source if self._gpus else None, "gpus": self._used.indexes}
        known |= {"by": self._used.by or None, "sliced": self._sliced, "why": copy.deepcopy(self._why)}
        fresh, self._told = ([] if known == self._told else [known]), known
        return [*fresh, *(list(astuple(one)) for one in readings)]

    def look(self) -> None:
        """Every few seconds, find the server's processes and the GPUs that they use: a set that only grows."""
        if time.monotonic() < self._look_at_s:
            return
        cpu_before = time.process_time()
        self._pids = listeners.server_pids(self._tag, self._port)
        self._look_at_s = time.monotonic() + max(_LOOK_EVERY_S, _LOOK_BUSY * (time.process_time() - cpu_before))
        if self._gpus is None:
            return
        used = gpus.used(self._gpus, self._pids, listeners.environment_of(self._pids))
        if used.by == gpus.BY_PROCESSES == self._used.by:
            used = gpus.Used(tuple(sorted({*used.indexes, *self._used.indexes})), used.by)
        if self._used.by != gpus.BY_PROCESSES or used.by == gpus.BY_PROCESSES:  # they leave the list when they end
            self._used = used
            self._sliced = [index for index in used.indexes if self._gpus.is_sliced(index)]

    def _host(self) -> Reading:
        t_ns, energy_j = time.perf_counter_ns(), self._rapl.energy_j()
        temp_c, memory_bytes = self._temperature.celsius(), listeners.memory_bytes(self._pids)
        why = {
            "energy_j": self._rapl.why,
            "temp_c": "the CPU has no sensor that can be read" if temp_c is None else None,
            "memory_used_bytes": "the server's processes can't be seen" if memory_bytes is None else None,
        }
        self._why[HOST] = {name: reason for name, reason in why.items() if reason}
        return Reading(
            t_ns,
            HOST,
            energy_j=energy_j,
            temp_c=temp_c,
            util_pct=psutil.cpu_percent(),
            memory_used_bytes=memory_bytes,
        )

    def _gpu_readings(self, turn: int | None) -> list[Reading]:
        """One reading of each GPU that still answers; with PCIe of the one whose turn it is."""
        if self._gpus is None:
            return []
        readings = []
        for index in sorted(self._live):
            try:
                readings.append(self._gpus.read(index, turn is not None and turn % self._gpus.count == index))
                self._why[f"gpu{index}"] = self._gpus.unsupported(index)
            except Lost as error:
                self._live.discard(index)
                self._why[f"gpu{index}"] = {"lost": str(error)}
        return readings


def _write(items: list[Any]) -> None:
    sys.stdout.write("".join(json.dumps(item, separators=(",", ":")) + "\n" for item in items))
    sys.stdout.flush()


def run(sampler: Sampler) -> None:
    """Sample until standard input ends; then once more, so that the last sample lies behind what was measured."""
    while True:
        sampler.look()
        began, cpu_before = time.monotonic(), time.process_time()
        _write(sampler.round())
        period_s = min(LONGEST_S, max(PERIOD_S, _BUSY * (time.process_time() - cpu_before)))
        pause_s = period_s - (time.monotonic() - began)
        if select.select([sys.stdin], [], [], max(0.0, pause_s))[0]:
            _write(sampler.round())
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", help="of the server's processes, where it was launched")
    parser.add_argument("--port", type=int, required=True, help="that it listens on")
    given = parser.parse_args()
    with contextlib.suppress(OSError, AttributeError):
        processes.die_with_parent()
        os.nice(5)  # what is measured goes first
    found, why = None, None
    try:
        found = gpus.find()
    except NoGpus as error:
        why = str(error)
    run(Sampler(given.tag, given.port, found, why))


if __name__ == "__main__":
    main()

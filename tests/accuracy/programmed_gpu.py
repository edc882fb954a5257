"""`python -m tests.accuracy.programmed_gpu …`: the sampler, over CONSTRUCTED GPUs whose power is programmed.

Each draws 300 W on average, up and down by 100 W every 2 s; every second one has no energy counter. They speak NVML as
tests/unit/constructed.py does. PROGRAMMED_GPUS says how many there are: 2 where it is not set.
"""

import math
import os
import time
from types import SimpleNamespace

from speedmatrix import gpus, sampling
from speedmatrix.nvidia import Nvidia
from tests.unit.constructed import NOT_SUPPORTED, Nvml

MEAN_W, SWING_W, PERIOD_S = 300.0, 100.0, 2.0
_OMEGA = 2 * math.pi / PERIOD_S


def power_w(t_ns: int) -> float:
    """Of one GPU at a moment of CLOCK_MONOTONIC."""
    return MEAN_W + SWING_W * math.sin(_OMEGA * (t_ns / 1e9))


def energy_j(t_ns: int) -> float:
    """Of one GPU up to a moment: the integral of its power."""
    return MEAN_W * (t_ns / 1e9) - SWING_W / _OMEGA * math.cos(_OMEGA * (t_ns / 1e9))


def _now_mw(fields: list[int]) -> list[SimpleNamespace]:
    value = SimpleNamespace(uiVal=round(1000 * power_w(time.perf_counter_ns())))
    return [SimpleNamespace(nvmlReturn=0, value=value)]


if __name__ == "__main__":
    counting = {
        "FieldValues": _now_mw,
        "TotalEnergyConsumption": lambda: round(1000 * energy_j(time.perf_counter_ns())),
    }
    both = [counting, counting | {"TotalEnergyConsumption": NOT_SUPPORTED}]
    count = int(os.environ.get("PROGRAMMED_GPUS", 2))
    gpus.find = lambda: Nvidia(Nvml(*(both[index % 2] for index in range(count))))
    sampling.main()

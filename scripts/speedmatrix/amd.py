"""AMD's GPUs through amdsmi, where ROCm has installed it. Written from its documentation, not tried on a real one."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from speedmatrix.nvidia import NoGpus
from speedmatrix.readings import Reading, answers

_Call = Callable[[Any, Any], Any]


def _number(told: Any, *keys: str) -> float:
    """The first of `keys` that holds a number; amdsmi says "N/A" where it has none. ValueError where all do."""
    for key in keys:
        value = told.get(key)
        if isinstance(value, int | float):
            return value
    raise ValueError("N/A")


def _temp_c(smi: Any, gpu: Any) -> float:
    """Of the edge sensor, or of the hottest spot where a GPU has no other."""
    now = smi.AmdSmiTemperatureMetric.CURRENT
    kinds = {"edge": smi.AmdSmiTemperatureType.EDGE, "hotspot": smi.AmdSmiTemperatureType.HOTSPOT}
    told, _ = answers({name: partial(smi.amdsmi_get_temp_metric, gpu, kind, now) for name, kind in kinds.items()})
    return _number(told, *kinds)


def _energy_j(smi: Any, gpu: Any) -> float:
    """The accumulator's ticks by the µJ of one."""
    told = smi.amdsmi_get_energy_count(gpu)
    return _number(told, "energy_accumulator", "power") * _number(told, "counter_resolution") / 1e6


def _clock(smi: Any, gpu: Any, kind: str, *keys: str) -> float:
    return _number(smi.amdsmi_get_clock_info(gpu, getattr(smi.AmdSmiClkType, kind)), *keys)


_MB = 2**20
_FACTS: dict[str, _Call] = {
    "name": lambda smi, gpu: smi.amdsmi_get_gpu_asic_info(gpu)["market_name"],
    "memory_bytes": lambda smi, gpu: int(_number(smi.amdsmi_get_gpu_vram_usage(gpu), "vram_total") * _MB),
    "power_limit_w": lambda smi, gpu: _number(smi.amdsmi_get_power_cap_info(gpu), "power_cap") / 1e6,
    "power_default_w": lambda smi, gpu: _number(smi.amdsmi_get_power_cap_info(gpu), "default_power_cap") / 1e6,
    "sm_clock_max_mhz": lambda smi, gpu: _clock(smi, gpu, "GFX", "max_clk"),
    "mem_clock_max_mhz": lambda smi, gpu: _clock(smi, gpu, "MEM", "max_clk"),
}
_READINGS: dict[str, _Call] = {
    "energy_j": _energy_j,
    "power_w": lambda smi, gpu: _number(
        smi.amdsmi_get_power_info(gpu), "socket_power", "current_socket_power", "average_socket_power"
    ),
    "temp_c": _temp_c,
    "sm_clock_mhz": lambda smi, gpu: _clock(smi, gpu, "GFX", "clk", "cur_clk"),
    "mem_clock_mhz": lambda smi, gpu: _clock(smi, gpu, "MEM", "clk", "cur_clk"),
    "util_pct": lambda smi, gpu: _number(smi.amdsmi_get_gpu_activity(gpu), "gfx_activity"),
    "memory_used_bytes": lambda smi, gpu: int(_number(smi.amdsmi_get_gpu_vram_usage(gpu), "vram_used") * _MB),
}


class Amd:
    """The GPUs that amdsmi lists, by index. Raises NoGpus where there are none. What slows them down is not read."""

    source: str = "amdsmi"
    visible_env: tuple[str, ...] = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")

    def __init__(self, smi: Any = None) -> None:
        try:
            smi = smi or importlib.import_module("amdsmi")
            smi.amdsmi_init()
            self._gpus = list(smi.amdsmi_get_processor_handles())
        except Exception as error:
            raise NoGpus(f"amdsmi: {error}") from error
        if not self._gpus:
            raise NoGpus("amdsmi lists no GPU")
        self._smi, self.count = smi, len(self._gpus)
        self._why: dict[int, dict[str, str]] = {index: {} for index in range(self.count)}

    def system(self) -> dict[str, Any]:
        """The driver's version."""
        told, _ = answers({"driver": lambda: self._smi.amdsmi_get_gpu_driver_info(self._gpus[0])["driver_version"]})
        return {"driver": told["driver"], "cuda": None}

    def facts(self, index: int) -> dict[str, Any]:
        """What the GPU is and how it is set; `absent` has the reason for each None."""
        told, raised = self._ask(index, _FACTS)
        return {"index": index, **told, "absent": {name: str(error) for name, error in raised.items()}}

    def read(self, index: int, with_pcie: bool = False) -> Reading:
        """The GPU now."""
        t_ns = time.perf_counter_ns()
        told, raised = self._ask(index, _READINGS)
        self._why[index] = {name: str(error) for name, error in raised.items()}
        return Reading(t_ns, f"gpu{index}", **told)

    def unsupported(self, index: int) -> dict[str, str]:
        """Why readings of this GPU are None: what it said when it was asked last."""
        return self._why[index] | {"throttle": "not read through amdsmi"}

    def processes(self, index: int) -> dict[int, int | None] | None:
        """Bytes of GPU memory by pid of each process there, None where not known; None where amdsmi does not tell."""
        told, _ = self._ask(index, {"running": lambda smi, gpu: smi.amdsmi_get_gpu_process_list(gpu)})
        return None if told["running"] is None else {int(one["pid"]): None for one in told["running"]}

    def is_sliced(self, index: int) -> bool:
        """Partitions of a GPU are not looked for."""
        return False

    def index_of(self, uuid: str) -> int | None:
        """The GPU of this UUID."""
        for index in range(self.count):
            if self._ask(index, {"uuid": lambda smi, gpu: smi.amdsmi_get_gpu_device_uuid(gpu)})[0]["uuid"] == uuid:
                return index
        return None

    def _ask(self, index: int, calls: dict[str, _Call]) -> tuple[dict[str, Any], dict[str, Exception]]:
        def bound(call: _Call) -> Callable[[], Any]:
            return lambda: call(self._smi, self._gpus[index])

        return answers({name: bound(call) for name, call in calls.items()})

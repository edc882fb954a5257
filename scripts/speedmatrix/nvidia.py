"""NVIDIA's GPUs through NVML: what they are and what they do now. What a driver can't tell is None with its reason."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

from speedmatrix.readings import CLOCKS_SET, HARDWARE, NOT_SLOWED, POWER, THERMAL, Reading, answers

_CLOCK_LIMIT, _POWER_CAP, _HW_SLOWDOWN, _SW_THERMAL, _HW_THERMAL, _POWER_BRAKE = 0x2, 0x4, 0x8, 0x20, 0x40, 0x80


class NoGpus(Exception):
    """There are no GPUs of this maker; the message says why."""


class Lost(Exception):
    """The GPU answers no more; the message says why."""


def slowed(bits: int) -> str:
    """NVML's clocks event reasons in words; a hardware slowdown by heat counts as thermal alone."""
    words = {
        POWER: bits & _POWER_CAP,
        THERMAL: bits & (_SW_THERMAL | _HW_THERMAL),
        HARDWARE: bits & _POWER_BRAKE or (bits & _HW_SLOWDOWN and not bits & _HW_THERMAL),
        CLOCKS_SET: bits & _CLOCK_LIMIT,
    }
    return "+".join(word for word, holds in words.items() if holds) or NOT_SLOWED


def _nvlinks(nvml: Any, gpu: Any) -> int:
    """How many NVLink links are up. Raises NVMLError where the GPU has none to ask about."""
    active = int(nvml.nvmlDeviceGetNvLinkState(gpu, 0))
    for link in range(1, nvml.NVML_NVLINK_MAX_LINKS):
        try:
            active += nvml.nvmlDeviceGetNvLinkState(gpu, link)
        except nvml.NVMLError:  # beyond the last one
            break
    return active


def _slices(nvml: Any, gpu: Any) -> list[dict[str, Any]]:
    """The MIG slices of a GPU; empty where MIG is off. Raises NVMLError where it has no MIG."""
    found = []
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu) if nvml.nvmlDeviceGetMigMode(gpu)[0] else 0):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place)
        except nvml.NVMLError:  # a place that holds no slice
            continue
        found.append(
            {"name": nvml.nvmlDeviceGetName(part), "memory_bytes": int(nvml.nvmlDeviceGetMemoryInfo(part).total)}
        )
    return found


def _power_w(nvml: Any, gpu: Any) -> float:
    """W at this instant where the driver tells it; else what it calls usage, which may be the last second's mean."""
    try:
        (field,) = nvml.nvmlDeviceGetFieldValues(gpu, [nvml.NVML_FI_DEV_POWER_INSTANT])
        if field.nvmlReturn == nvml.NVML_SUCCESS:
            return float(field.value.uiVal / 1000)
    except nvml.NVMLError:
        pass
    return float(nvml.nvmlDeviceGetPowerUsage(gpu) / 1000)


def _throttle(nvml: Any, gpu: Any) -> str:
    try:
        return slowed(nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu))
    except nvml.NVMLError_FunctionNotFound:  # older drivers call them throttle reasons; the bits are the same
        return slowed(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))


_Call = Callable[[Any, Any], Any]
_APP, _DEFAULT = "NVML_CLOCK_ID_APP_CLOCK_TARGET", "NVML_CLOCK_ID_APP_CLOCK_DEFAULT"

# What stays as it is while a server is measured.
_FACTS: dict[str, _Call] = {
    "name": lambda nvml, gpu: nvml.nvmlDeviceGetName(gpu),
    "memory_bytes": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).total,
    "compute_capability": lambda nvml, gpu: "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(gpu)),
    "power_limit_w": lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
    "power_default_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu) / 1000,
    "sm_clock_max_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "mem_clock_max_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_MEM),
    "sm_clock_set_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClock(gpu, nvml.NVML_CLOCK_SM, getattr(nvml, _APP)),
    "sm_clock_default_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClock(gpu, nvml.NVML_CLOCK_SM, getattr(nvml, _DEFAULT)),
    "sm_clock_offset_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetGpcClkVfOffset(gpu),
    "mem_clock_offset_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetMemClkVfOffset(gpu),
    "pcie_generation": lambda nvml, gpu: nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu),
    "pcie_width": lambda nvml, gpu: nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu),
    "pcie_width_max": lambda nvml, gpu: nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu),
    "nvlinks": _nvlinks,
    "mig": lambda nvml, gpu: bool(nvml.nvmlDeviceGetMigMode(gpu)[0]),
    "mig_slices": _slices,
    "ecc": lambda nvml, gpu: bool(nvml.nvmlDeviceGetEccMode(gpu)[0]),
    "persistence": lambda nvml, gpu: bool(nvml.nvmlDeviceGetPersistenceMode(gpu)),
}
# What changes; energy comes first, right after the clock is read.
_READINGS: dict[str, _Call] = {
    "energy_j": lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000,
    "power_w": _power_w,
    "temp_c": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    "sm_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "mem_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
    "util_pct": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "memory_used_bytes": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
    "throttle": _throttle,
}
# NVML takes 20 ms for each of these.
_PCIE: dict[str, _Call] = {
    "pcie_rx_mb_s": lambda nvml, gpu: nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_RX_BYTES) / 1000,
    "pcie_tx_mb_s": lambda nvml, gpu: nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_TX_BYTES) / 1000,
}


class Nvidia:
    """The GPUs that NVML lists, by index. Raises NoGpus where there are none."""

    source: str = "nvml"
    visible_env: tuple[str, ...] = ("CUDA_VISIBLE_DEVICES",)

    def __init__(self, nvml: Any = None) -> None:
        try:
            self._nvml = nvml or importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            self.count = int(self._nvml.nvmlDeviceGetCount())
        except Exception as error:
            raise NoGpus(f"NVML: {str(error).removeprefix('NVML ')}") from error
        if not self.count:
            raise NoGpus("NVML lists no GPU")
        self._handles: dict[int, Any] = {}
        self._mute: dict[int, dict[str, str]] = {index: {} for index in range(self.count)}

    def system(self) -> dict[str, Any]:
        """Versions of the driver and of the newest CUDA that it runs."""
        nvml = self._nvml
        told, _ = answers({"driver": nvml.nvmlSystemGetDriverVersion, "cuda": nvml.nvmlSystemGetCudaDriverVersion})
        cuda = told["cuda"]
        return {
            "driver": told["driver"],
            "cuda": None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        }

    def facts(self, index: int) -> dict[str, Any]:
        """What the GPU is and how it is set; `absent` has the reason for each None."""
        told, raised = self._ask(index, _FACTS)
        return {"index": index, **told, "absent": {name: str(error) for name, error in raised.items()}}

    def read(self, index: int, with_pcie: bool = False) -> Reading:
        """The GPU now. What it does not support is not asked again. Raises Lost."""
        wanted = _READINGS | (_PCIE if with_pcie else {})
        t_ns = time.perf_counter_ns()
        told, raised = self._ask(index, {name: call for name, call in wanted.items() if name not in self._mute[index]})
        gone = (self._nvml.NVML_ERROR_GPU_IS_LOST, self._nvml.NVML_ERROR_RESET_REQUIRED)
        for name, error in raised.items():
            if getattr(error, "value", None) in gone:
                raise Lost(str(error)) from error
            if isinstance(error, self._nvml.NVMLError_NotSupported | self._nvml.NVMLError_FunctionNotFound):
                self._mute[index][name] = str(error)
        return Reading(t_ns, f"gpu{index}", **told)

    def unsupported(self, index: int) -> dict[str, str]:
        """Why readings of this GPU are None: what it said when it was asked."""
        return self._mute[index]

    def processes(self, index: int) -> dict[int, int | None] | None:
        """Bytes of GPU memory by pid of each process that computes there; None where NVML does not tell."""
        told, _ = self._ask(index, {"running": lambda nvml, gpu: nvml.nvmlDeviceGetComputeRunningProcesses(gpu)})
        running = told["running"]
        return None if running is None else {one.pid: one.usedGpuMemory for one in running}

    def is_sliced(self, index: int) -> bool:
        """Whether MIG is on, so that the GPU's power is not one server's alone."""
        return bool(self._ask(index, {"mig": _FACTS["mig"]})[0]["mig"])

    def index_of(self, uuid: str) -> int | None:
        """The GPU that this UUID, or the beginning of one, or that of a slice names. UUIDs are never kept."""
        if uuid.startswith("MIG-"):
            index: int | None = answers({"index": lambda: self._of_slice(uuid)})[0]["index"]
            return index
        for place in range(self.count):
            own = self._ask(place, {"uuid": lambda nvml, gpu: nvml.nvmlDeviceGetUUID(gpu)})[0]["uuid"]
            if own and own.startswith(uuid):
                return place
        return None

    def _of_slice(self, uuid: str) -> int:
        part = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        whole = self._nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)
        return int(self._nvml.nvmlDeviceGetIndex(whole))

    def _handle(self, index: int) -> Any:
        if index not in self._handles:
            self._handles[index] = self._nvml.nvmlDeviceGetHandleByIndex(index)
        return self._handles[index]

    def _ask(self, index: int, calls: dict[str, _Call]) -> tuple[dict[str, Any], dict[str, Exception]]:
        def bound(call: _Call) -> Callable[[], Any]:
            return lambda: call(self._nvml, self._handle(index))

        return answers({name: bound(call) for name, call in calls.items()})

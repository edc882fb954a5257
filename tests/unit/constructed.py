"""GPUs that are CONSTRUCTED: their answers were written by hand for the tests, none was recorded from a real one."""

from types import SimpleNamespace
from typing import Any

import pynvml

NOT_SUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
NOT_FOUND = pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
LOST = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
UNKNOWN = pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)

# A GPU of 96 GB at rest, set as its maker ships it.
GPU: dict[str, Any] = {
    "Name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "MemoryInfo": SimpleNamespace(total=96 * 2**30, used=90 * 2**30),
    "CudaComputeCapability": (12, 0),
    "EnforcedPowerLimit": 600_000,  # mW
    "PowerManagementDefaultLimit": 600_000,
    "MaxClockInfo": lambda kind: {pynvml.NVML_CLOCK_SM: 2430, pynvml.NVML_CLOCK_MEM: 12481}[kind],
    "Clock": lambda kind, which: 2430,
    "GpcClkVfOffset": 0,
    "MemClkVfOffset": 0,
    "MaxPcieLinkGeneration": 5,
    "CurrPcieLinkWidth": 16,
    "MaxPcieLinkWidth": 16,
    "NvLinkState": NOT_SUPPORTED,
    "MigMode": (0, 0),
    "EccMode": (1, 1),
    "PersistenceMode": 1,
    "TotalEnergyConsumption": 5_000_000,  # mJ
    "FieldValues": lambda fields: [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=85_500))],
    "PowerUsage": 90_000,
    "Temperature": lambda kind: 34,
    "ClockInfo": lambda kind: {pynvml.NVML_CLOCK_SM: 180, pynvml.NVML_CLOCK_MEM: 405}[kind],
    "UtilizationRates": SimpleNamespace(gpu=3),
    "CurrentClocksEventReasons": pynvml.nvmlClocksEventReasonGpuIdle,
    "PcieThroughput": lambda way: {pynvml.NVML_PCIE_UTIL_RX_BYTES: 2500, pynvml.NVML_PCIE_UTIL_TX_BYTES: 800}[way],
    "ComputeRunningProcesses": [],
    "UUID": "GPU-of-this-test-0",
}


class Nvml:
    """nvidia-ml-py's functions over constructed GPUs: `nvmlDeviceGet<name>` gives what `gpus[index][name]` says.

    An exception is raised, a function called; what a GPU has no answer for is not supported.
    """

    def __init__(self, *gpus: dict[str, Any], **system: Any) -> None:
        self.gpus = [GPU | {"UUID": f"GPU-of-this-test-{index}"} | gpu for index, gpu in enumerate(gpus)]
        self._system = {
            "Init": None,
            "SystemGetDriverVersion": "580.65.06",
            "SystemGetCudaDriverVersion": 13000,
        } | system
        self.asked: list[tuple[str, int]] = []

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or name.startswith("nvmlClocks"):
            return getattr(pynvml, name)  # constants and errors are the real ones
        return lambda *arguments: self._answer(name.removeprefix("nvml"), *arguments)

    def _answer(self, name: str, *arguments: Any) -> Any:
        if name in self._system:
            answer, more = self._system[name], arguments
        else:
            index, *more = arguments
            self.asked.append((name, index))
            answer = self.gpus[index].get(name.removeprefix("DeviceGet"), NOT_SUPPORTED)
        if isinstance(answer, Exception):
            raise answer
        return answer(*more) if callable(answer) else answer


def process(pid: int, gigabytes: float | None = 1) -> SimpleNamespace:
    """A process on a GPU, as NVML lists it."""
    return SimpleNamespace(pid=pid, usedGpuMemory=None if gigabytes is None else round(gigabytes * 2**30))

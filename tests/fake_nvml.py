"""A stand-in for the module `pynvml`: devices by UUID, and faults that drivers have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """As in pynvml, raised with the code, printed as the text."""

    def __init__(self, text: Any) -> None:
        super().__init__(str(text))


NOT_SUPPORTED = NVMLError("Not Supported")
NO_PERMISSION = NVMLError("Insufficient Permissions")
LOST = NVMLError("GPU is lost")


class FakeNvml:
    """`devices`: UUIDs with their prefix, in NVML's order. What a call answers is an attribute; an error is raised.

    `answers`: by name of the call, for every device. Each call of a counter adds to it.
    """

    NVMLError = NVMLError
    NVML_SUCCESS = 0
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    NVML_TEMPERATURE_GPU = 0
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 138, 139

    def __init__(self, *devices: str, mig: bool = False, **answers: Any) -> None:
        self.devices = devices or ("GPU-a",)
        self.mig = mig
        self.open = 0
        self.answers: dict[str, Any] = {
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=50),
            "nvmlDeviceGetClockInfo": 1980,
            "nvmlDeviceGetCurrentClocksEventReasons": 0,
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=2**30),
            "nvmlDeviceGetPowerUsage": 400_000,
            "nvmlDeviceGetTotalEnergyConsumption": 7_000_000_000,
            "nvmlDeviceGetTemperature": 61,
            "nvmlDeviceGetPcieThroughput": 1500,
            "nvmlDeviceGetFieldValues": [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=4096))],
            "nvmlDeviceGetComputeRunningProcesses": [],
            **answers,
        }
        self.asked: list[tuple[str, str]] = []

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in self.devices:
            raise NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        return [int(self.mig), int(self.mig)]

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__["answers"]:
            raise AttributeError(f"module 'pynvml' has no attribute '{name}'")
        return lambda handle, *_: self._answer(name, handle)

    def _answer(self, name: str, handle: str) -> Any:
        self.asked.append((name, handle))
        answer = self.answers[name]
        if isinstance(answer, NVMLError):
            raise answer
        return answer

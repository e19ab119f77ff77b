"""What NVML is asked about a GPU, one question at a time: devices and drivers exist that answer some and refuse others.

`nvml` is the module `pynvml` (distribution nvidia-ml-py), `handle` what it calls a device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fsbench.metrics.gpus import Kind

_NOT_AVAILABLE = (None, "N/A", 2**32 - 1, 2**64 - 1)
"""How drivers answer where there is nothing to tell: with success, and one of these."""
_ALL_LINKS = 2**32 - 1
"""Scope of a field: all NVLinks of the device together."""


class NotAvailable(Exception):
    """NVML answered that there is no answer."""


@dataclass(frozen=True)
class Question:
    """`kind`: what the answers mean in a row. `scale`: from NVML's unit to the unit in the name, of a number."""

    name: str
    kind: Kind
    ask: Callable[[Any, Any], Any]
    scale: float | None = None

    def answer(self, nvml: Any, handle: Any) -> Any:
        """A number, or PIDs.

        Raises:
            NotAvailable: NVML says so without an error.
            Exception: whatever NVML raises.
        """
        raw = self.ask(nvml, handle)
        if isinstance(raw, list):
            return raw
        if raw in _NOT_AVAILABLE:
            raise NotAvailable(f"NVML answers {raw}, which means not available")
        return raw if self.scale is None else raw * self.scale


def _clock(name: str) -> Callable[[Any, Any], Any]:
    return lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, getattr(nvml, name))


def _pcie(direction: str) -> Callable[[Any, Any], Any]:
    """The mean over 20 ms, for which the call blocks."""
    return lambda nvml, handle: nvml.nvmlDeviceGetPcieThroughput(handle, getattr(nvml, direction))


def _nvlink(field: str) -> Callable[[Any, Any], Any]:
    def ask(nvml: Any, handle: Any) -> Any:
        (found,) = nvml.nvmlDeviceGetFieldValues(handle, [(getattr(nvml, field), _ALL_LINKS)])
        if found.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(found.nvmlReturn)
        return found.value.ullVal

    return ask


def _throttle_reasons(nvml: Any, handle: Any) -> int:
    """The call was renamed; older modules and drivers know the old name only."""
    renamed = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    return (renamed or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(handle)


def _processes(nvml: Any, handle: Any) -> list[int]:
    return [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]


QUESTIONS = (
    Question("sm_util", "gauge", lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu, 1e-2),
    Question("sm_clock_mhz", "gauge", _clock("NVML_CLOCK_SM")),
    Question("memory_clock_mhz", "gauge", _clock("NVML_CLOCK_MEM")),
    Question("throttle_reasons", "flags", _throttle_reasons),
    Question("memory_used_mib", "gauge", lambda nvml, handle: nvml.nvmlDeviceGetMemoryInfo(handle).used, 2**-20),
    Question("power_w", "gauge", lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle), 1e-3),
    Question("energy_j", "counter", lambda nvml, handle: nvml.nvmlDeviceGetTotalEnergyConsumption(handle), 1e-3),
    Question(
        "temperature_c", "gauge", lambda nvml, handle: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
    ),
    Question("pcie_sent_kb_per_s", "gauge", _pcie("NVML_PCIE_UTIL_TX_BYTES")),
    Question("pcie_received_kb_per_s", "gauge", _pcie("NVML_PCIE_UTIL_RX_BYTES")),
    Question("nvlink_sent_kib", "counter", _nvlink("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX")),
    Question("nvlink_received_kib", "counter", _nvlink("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX")),
    Question("processes", "pids", _processes),
)

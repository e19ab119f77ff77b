"""The timeline of a rank whose compute is on a GPU: the same marks, timed where the compute stream comes to them.

The host runs ahead of the GPU, so that its own times say nothing of what the GPU waits for. A label here holds from the
point at which the GPU has done all that was queued before the mark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from fsbench.collect.device_clock import DeviceClock
from fsbench.collect.device_ops import DeviceOps
from fsbench.collect.operations import OperationLog
from fsbench.collect.timeline import Timeline
from fsbench.metrics.trace import RankTrace


class CudaTimeline(Timeline):
    """See `Timeline`. The compute stream is the one that is current when this is made. `last_compute_ns` stays the
    host's: nothing is known of the GPU's before the end."""

    def __init__(
        self, device: torch.device, lanes: Sequence[str] = (), clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        super().__init__(lanes, clock)
        self._device = device
        self._compute_stream = torch.cuda.current_stream(device)
        self._device_clock = DeviceClock(device, clock)
        self._points: list[int] = []

    @property
    def clock_bound_ns(self) -> int | None:
        return self._device_clock.bound_ns

    def scratch(self) -> Timeline:
        return CudaTimeline(self._device)

    def attend(self, log: OperationLog) -> None:
        log.on_device = DeviceOps(self._device_clock, self._device)

    def begin_step(self) -> None:
        self._device_clock.prepare()
        super().begin_step()
        self._device_clock.link()

    def _mark(self, code: int) -> None:
        super()._mark(code)
        self._points.append(self._device_clock.point(self._compute_stream))

    def trace(self) -> RankTrace:
        """Waits for the GPU, once. The stream's time counts as CPU time: nobody takes the GPU away."""
        times = self._device_clock.times()[self._points]
        return self._tiled(times, times)


def timeline_on(device: torch.device, lanes: Sequence[str]) -> Timeline:
    """Of a rank that computes there."""
    return CudaTimeline(device, lanes) if device.type == "cuda" else Timeline(lanes)

"""When operations on a GPU's streams begin and end: points of a device clock around each."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from fsbench.collect.device_clock import DeviceClock, Int64

_c10d: Any = dist


class DeviceOps:
    """Of one lane, in issue order. Operations begin where the stream of who issues them has come to, and end on the
    communicator's; a stream that does nothing else waits for that."""

    def __init__(self, clock: DeviceClock, device: torch.device) -> None:
        self._clock = clock
        self._device = device
        self._end_stream = torch.cuda.Stream(device)
        self._begins: list[int] = []
        self._ends: list[int] = []

    def begin(self) -> None:
        self._begins.append(self._clock.point(torch.cuda.current_stream(self._device)))

    def end(self, work: Any, held: Any) -> Any:
        """Marks the end of `work`, for which nobody may have waited yet, and returns what the issuer waits for. None:
        the operation is on the stream that is current. `held`: what holds its tensors."""
        if work is None:
            self._ends.append(self._clock.point(torch.cuda.current_stream(self._device)))
            return None
        with torch.cuda.stream(self._end_stream):
            work.wait()
        self._ends.append(self._clock.point(self._end_stream))
        return HeldWork(work, held)

    def clear(self) -> None:
        self._begins.clear()
        self._ends.clear()

    def starts(self) -> Int64:
        """int64[operations], host nanoseconds."""
        return self._clock.times()[self._begins]

    def ends(self) -> Int64:
        """The same. None before its start: the clock's resolution would allow it."""
        times = self._clock.times()
        return np.maximum(times[self._begins], times[self._ends])


class HeldWork(_c10d.Work):
    """A work that was waited for on another stream. torch then lets go of the tensors, whose memory the issuer's stream
    might use anew too early: they are held until the issuer waits as well.

    Libraries ask whether what they got is torch's `Work`, and silently do not wait for anything else.
    """

    def __init__(self, work: Any, held: Any) -> None:
        super().__init__()
        self._work = work
        self._held = held

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._work.wait()
        self._held = None
        return True

    def is_completed(self) -> bool:
        return self._work.is_completed()

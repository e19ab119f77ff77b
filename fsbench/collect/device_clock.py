"""When a GPU reached points of its streams, on the host's clock.

A point is an event, recorded without waiting. Events are read after one synchronise at the end, never before; until
then nothing here makes host or GPU wait. Their distance to an anchor, at which both clocks were read, gives their time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

_SPARE = 512
"""Events that are made ahead, outside the windows: more than a step takes."""
_TRIES = 9
_RESOLUTION_NS = 500
"""Of the distance between two events, as CUDA documents it."""


class Anchor(NamedTuple):
    """An event that the GPU reached at `at_ns` of the host's clock, give or take `bound_ns`."""

    event: Any
    at_ns: int
    bound_ns: int


class EventPool:
    """Events with times. torch makes the CUDA event with its first record, so that new ones are recorded once."""

    def __init__(self) -> None:
        self._spare: list[Any] = []

    def fill(self) -> None:
        while len(self._spare) < _SPARE:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._spare.append(event)

    def take(self) -> Any:
        if not self._spare:
            self.fill()
        return self._spare.pop()

    def give(self, events: list[Any]) -> None:
        self._spare += events


class DeviceClock:
    """Numbers the points of a device's streams in the order in which the host came to them, and tells their times.

    CUDA tells the distance of two events as a float32 of milliseconds, which is too coarse over a whole run: points are
    measured against the latest `link` before them, links against the one before.
    """

    def __init__(self, device: torch.device, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._device = device
        self._clock = clock
        self._pool = EventPool()
        self._known: list[Int64] = []
        self._events: list[Any] = []
        self._link_of: list[int] = []
        self._links: list[Any] = []
        self._count = 0
        self.bound_ns = 0
        """How far any time read so far may be off the host's clock."""
        self._begin()

    def _begin(self) -> None:
        self._pool.fill()
        torch.cuda.synchronize(self._device)
        self._anchor = self._anchored()
        self._links = [self._anchor.event]

    def _anchored(self) -> Anchor:
        """The tightest of some tries: the host slept around others."""
        tries = []
        for _ in range(_TRIES):
            event = self._pool.take()
            before = self._clock()
            event.record(torch.cuda.current_stream(self._device))
            event.synchronize()
            after = self._clock()
            tries.append(Anchor(event, (before + after) // 2, (after - before + 1) // 2))
        return min(tries, key=lambda anchor: anchor.bound_ns)

    def prepare(self) -> None:
        """Makes events for what comes. Outside the windows."""
        self._pool.fill()

    def point(self, stream: Any) -> int:
        """A point of a stream, after everything that is queued there so far; its number."""
        event = self._pool.take()
        event.record(stream)
        self._events.append(event)
        self._link_of.append(len(self._links) - 1)
        self._count += 1
        return self._count - 1

    def link(self) -> None:
        """Those to come are measured against the last point."""
        self._links.append(self._events[-1])

    def times(self) -> Int64:
        """int64[points]: host nanoseconds of all points so far. The one place that waits, if there are new ones."""
        if self._events:
            torch.cuda.synchronize(self._device)
            end = self._anchored()
            self._known.append(self._read(end))
            bound_ns = max(self._anchor.bound_ns, end.bound_ns) + _RESOLUTION_NS
            self.bound_ns = max(self.bound_ns, bound_ns)
            self._pool.give(self._events)
            self._events, self._link_of = [], []
            self._anchor, self._links = end, [end.event]
        return np.concatenate(self._known) if self._known else np.zeros(0, np.int64)

    def _read(self, end: Anchor) -> Int64:
        """Between two anchors, with what the clocks drifted apart spread evenly."""
        steps = [earlier.elapsed_time(later) for earlier, later in zip(self._links, self._links[1:], strict=False)]
        links_ms = np.concatenate(([0.0], np.cumsum(np.array(steps, np.float64))))
        own_ms = [
            self._links[link].elapsed_time(event) for link, event in zip(self._link_of, self._events, strict=True)
        ]
        whole_ms = links_ms[-1] + self._links[-1].elapsed_time(end.event)
        since_ms = links_ms[np.array(self._link_of, np.int64)] + np.array(own_ms)
        return self._anchor.at_ns + np.rint(since_ms * ((end.at_ns - self._anchor.at_ns) / whole_ms)).astype(np.int64)

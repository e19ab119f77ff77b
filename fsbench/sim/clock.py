"""How far compute gets while collectives are in its way: a clock that runs slower meanwhile, the same on all ranks."""

from __future__ import annotations

import numpy as np

from fsbench.sim.topology import Int64

_FAR = 1e15
"""Nanoseconds beyond any time that is asked for."""


class ComputeClock:
    """Maps time to compute done, piece by piece; what comes after the last change goes on at its speed."""

    def __init__(self) -> None:
        self._times = [0.0]
        self._done = [0.0]
        self._speed = 1.0

    @property
    def speed(self) -> float:
        return self._speed

    def change(self, now: int, speed: float, since: int) -> None:
        """From `now` on, compute runs at `speed`. Nothing that began before `since` will be asked about."""
        self._done.append(self._done[-1] + (now - self._times[-1]) * self._speed)
        self._times.append(float(now))
        self._speed = speed
        if kept := int(np.searchsorted(self._times, since, side="right")) - 1:
            del self._times[:kept], self._done[:kept]

    def finish(self, start: Int64, ns: Int64) -> Int64:
        """When work that takes so long undisturbed ends, elementwise."""
        if len(self._times) == 1 and self._speed == 1:
            return start + ns
        times, done = np.array(self._times), np.array(self._done)
        times = np.append(times, times[-1] + _FAR)
        done = np.append(done, done[-1] + _FAR * self._speed)
        return np.rint(np.interp(np.interp(start, times, done) + ns, done, times)).astype(np.int64)

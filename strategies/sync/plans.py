"""Plans of the built-in dense synchronisations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fsbench.axes import DENSE, LaneSpec
from fsbench.sim.contract import Stage, SyncPlan
from fsbench.sim.plan import Operation
from fsbench.sim.topology import Int64

_NOTES = 2
"""Numbers that each rank tells all others in a round of averaging: see `fsbench_strategies.sync.averaging`."""


class AllReducePlan(SyncPlan):
    """Gradients in buckets, last parameters first, each when backward has come so far."""

    def __init__(self, stage: Stage, bucket: int) -> None:
        super().__init__()
        self._stage, self._script = stage, stage.script
        self._buckets = _cut([numel * stage.itemsize for numel in reversed(stage.parameters)], bucket)
        self.ready = (np.cumsum(self._buckets) / max(1, sum(self._buckets))).tolist()
        self._pending: list[Operation] = []

    def on_gradient_ready(self, place: int) -> None:
        self._pending.append(self._stage.collectives.all_reduce(DENSE, self._buckets[place], kind="dense"))

    def before_step(self) -> None:
        for pending in self._pending:
            self._script.wait(pending)
        self._pending = []
        self.synced.append(self._script.strategy(self._stage.costs.of(row_bytes=self._stage.dense_bytes)))


def _cut(sizes: list[int], bucket: int) -> list[int]:
    """Bytes of the buckets that parameters of these sizes make, in order."""
    buckets, open_bytes = [], 0
    for place, size in enumerate(sizes):
        open_bytes += size
        if open_bytes >= bucket or place == len(sizes) - 1:
            buckets.append(open_bytes)
            open_bytes = 0
    return buckets


class LocalStepsPlan(SyncPlan):
    """Every rank steps on its own gradients: nothing is sent."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage, self._script = stage, stage.script

    def before_step(self) -> None:
        self._script.strategy(self._pass())

    def _pass(self) -> Int64:
        """Once over the dense parameters."""
        return self._stage.costs.of(row_bytes=self._stage.dense_bytes)

    @property
    def _payload(self) -> int:
        """Bytes of a round of averaging."""
        return self._stage.dense_bytes + (2 + _NOTES * self._script.ranks) * self._stage.itemsize


class ForegroundMAPlan(LocalStepsPlan):
    """`every`: own steps between two averages."""

    def __init__(self, stage: Stage, every: int) -> None:
        super().__init__(stage)
        self._every = every
        self._steps = 0

    def after_step(self) -> None:
        self._steps += 1
        if self._steps % self._every == 0:
            self._script.strategy(self._pass())
            self._script.wait(self._stage.collectives.all_reduce(DENSE, self._payload, kind="dense"))
            self.synced.append(self._script.strategy(self._pass()))


@dataclass(frozen=True)
class Period:
    """When a background loop may go on: at least `min_interval_ns` after a round, and no rank's rounds take more than
    a share `duty` of a core."""

    min_interval_ns: float
    duty: float


class ShadowMAPlan(LocalStepsPlan):
    """A loop of rounds: snapshot, all-reduce, write-back, pause. It starts with the first step's backward."""

    def __init__(self, stage: Stage, lane: LaneSpec, period: Period) -> None:
        super().__init__(stage)
        self._lane = lane
        self._period = period
        self._runs = False

    def after_backward(self, step: int) -> None:
        if not self._runs:
            self._runs = True
            self._script.loop(self._lane, self._round, self._pause)

    def _round(self) -> None:
        self._script.work(self._lane, self._pass())
        self._stage.collectives.all_reduce(self._lane, self._payload, kind="dense")
        self.synced.append(self._script.work(self._lane, self._pass()))

    def _pause(self, took: Int64) -> float:
        """The round is part of the period as far as it took the rank that came last to it."""
        moved = 2 * self._payload * (self._script.ranks - 1) / self._script.ranks
        cpu_ns = 2 * self._stage.costs.of(row_bytes=self._stage.dense_bytes) + moved * self._stage.costs.host_byte_ns
        throttle = cpu_ns / self._period.duty - took.min() if self._period.duty < 1 else 0.0
        return max(self._period.min_interval_ns, throttle, 0.0)

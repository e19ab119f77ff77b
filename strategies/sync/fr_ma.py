"""Model averaging in the foreground: the twin of `shadow-ma`, at a fixed rate."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsbench.axes import DENSE, Sync
from fsbench_strategies.sync.local_steps import LocalSteps, check_share

if TYPE_CHECKING:
    import torch

    from fsbench.sim.contract import Stage, SyncPlan


class ForegroundMA(LocalSteps):
    """Averages the dense parameters over ranks every k own steps, while training waits.

    The same payload, rule and kind of group as `shadow-ma`; nothing is in flight, so that `pull` and `delta` are one
    (McMahan et al. 2017, arXiv 1602.05629; ShadowSync's FR-MA in the manner of arXiv 2003.03477).
    """

    @dataclass(frozen=True)
    class Options:
        """`every`: own steps between two averages. `alpha`: how far a replica moves to the mean, in (0, 1]."""

        every: int = 5
        alpha: float = 1.0

        def __post_init__(self) -> None:
            if self.every < 1:
                raise ValueError(f"every is {self.every}, expected at least 1")
            check_share("alpha", self.alpha)

    options: Options
    uses = frozenset({"collectives"})
    lanes = (DENSE,)

    def attach(self, module: torch.nn.Module) -> None:
        from fsbench_strategies.sync.averaging import Round

        super().attach(module)
        self._round = Round(self.flat.values, self.context.rank, self.context.ranks)
        self._syncs: list[Sync] = []

    def after_step(self) -> None:
        super().after_step()
        if self.steps % self.options.every == 0:
            self._average()

    def _average(self) -> None:
        from fsbench_strategies.sync.averaging import SPREAD_EVERY

        keep = len(self._syncs) % SPREAD_EVERY == 0
        payload = self._round.fill(keep=keep)
        lane = self.context.lanes[DENSE.name]
        self.context.collectives.all_reduce(lane, payload, kind="dense").wait()
        self._syncs.append(Sync(self.steps, time.monotonic_ns(), self._round.spread()))
        self._round.take(self.options.alpha, "pull")

    def plan(self, stage: Stage) -> SyncPlan:
        from fsbench_strategies.sync.plans import ForegroundMAPlan

        return ForegroundMAPlan(stage, self.options.every)

    def syncs(self) -> Sequence[Sync]:
        return tuple(self._syncs)

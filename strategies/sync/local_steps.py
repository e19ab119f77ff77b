"""What strategies share whose ranks step on their own: gradients stay local, and replicas drift apart."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fsbench.axes import CONTROL, DenseSync, TargetCounts

if TYPE_CHECKING:
    import torch

    from fsbench.sim.contract import Stage, SyncPlan


def check_share(name: str, value: float) -> None:
    """Raises:
    ValueError: not in (0, 1].
    """
    if not 0 < value <= 1:
        raise ValueError(f"{name} is {value}, expected more than 0 and at most 1")


class LocalSteps(DenseSync):
    """Every rank steps on its own gradients, divided by its own target count.

    After `attach`, `flat` holds all dense parameters. Subclasses bring the replicas together.
    """

    exact = False
    needs_totals = False

    def attach(self, module: torch.nn.Module) -> None:
        from fsbench_strategies.sync.flat import FlatParameters

        self._module = module
        self.flat = FlatParameters(module)
        self.steps = 0
        """Own steps so far."""

    def after_backward(self, step: int, counts: TargetCounts) -> None:
        self._targets = counts.local

    def before_step(self) -> None:
        self.flat.gradients.div_(max(1, self._targets))

    def after_step(self) -> None:
        self.steps += 1

    def plan(self, stage: Stage) -> SyncPlan:
        from fsbench_strategies.sync.plans import LocalStepsPlan

        return LocalStepsPlan(stage)

    def replicas(self) -> Mapping[str, Mapping[str, torch.Tensor]]:
        """`trainer`: rank 0's, as one trainer's copy is what is published; `mean`: of all ranks, unweighted."""
        own = self.flat.values.to("cpu", copy=True)
        first = own if self.context.rank == 0 else own.new_zeros(own.shape)
        trainer, mean = self._sum(first), self._sum(own) / self.context.ranks
        return {"trainer": self.flat.state_of(self._module, trainer), "mean": self.flat.state_of(self._module, mean)}

    def evidence(self) -> Mapping[str, Any]:
        """Rounds so far, and the median of the spreads that were measured when replicas were sent."""
        spreads = [sync.spread for sync in self.syncs() if sync.spread is not None]
        return {"rounds": len(self.syncs()), "spread_at_sync_p50": statistics.median(spreads) if spreads else None}

    def _sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Over ranks, on the control lane: it is no part of training."""
        import torch.distributed as dist

        lane, total = self.context.lanes[CONTROL.name], tensor.clone()
        lane.submit(lambda: dist.all_reduce(total, group=lane.group), kind="state").wait()
        return total

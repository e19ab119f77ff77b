"""What strategies share whose ranks step on their own: gradients stay local, and replicas drift apart."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from fsbench.axes import CONTROL, DenseSync, TargetCounts

if TYPE_CHECKING:
    import torch


class LocalSteps(DenseSync):
    """Every rank steps on its own gradients, divided by its own target count.

    After `attach`, `flat` holds all dense parameters. Subclasses bring the replicas together. Worker threads may train
    over `flat` at once; a subclass that syncs while training waits must ask them to stand still.
    """

    exact = False
    needs_totals = False
    hogwild = True

    def attach(self, module: torch.nn.Module) -> None:
        from fsbench_strategies.sync.flat import FlatParameters

        self._module = module
        self.flat = FlatParameters(module)
        self.steps = 0
        """Own steps so far, of all workers."""

    def after_backward(self, step: int, counts: TargetCounts) -> None:
        self._targets = counts.local

    def before_step(self) -> None:
        self.flat.gradients.div_(max(1, self._targets))

    def after_step(self) -> None:
        self.steps += 1

    def replicas(self) -> Mapping[str, Mapping[str, torch.Tensor]]:
        """`trainer`: rank 0's, as one trainer's copy is what is published; `mean`: of all ranks, unweighted."""
        everyone = self._everyones()
        return self.named({"trainer": everyone[0], "mean": everyone.mean(0)})

    def named(self, replicas: Mapping[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
        """State dicts of the module, of flat parameters [numel]."""
        return {name: self.flat.state_of(self._module, values) for name, values in replicas.items()}

    def state_dict(self) -> dict[str, Any]:
        """`replicas`: of all ranks, [ranks, numel]; `steps`: of this rank."""
        return {"steps": self.steps, "replicas": self._everyones()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """On as many ranks each goes on with its own replica, on more or fewer with the mean of all. What the optimizer
        keeps is rank 0's on every rank."""
        replicas = state["replicas"]
        own = replicas[self.context.rank] if len(replicas) == self.context.ranks else replicas.mean(0)
        self.flat.values.copy_(own)
        self.steps = state["steps"]

    def wait_for_all(self) -> None:
        """Until every rank has come here: on the control lane, as it is no part of training."""
        import torch.distributed as dist

        lane = self.context.lanes[CONTROL.name]
        lane.submit(partial(dist.barrier, group=lane.group), kind="state").wait()

    def _everyones(self) -> torch.Tensor:
        """The replicas of all ranks as they are, [ranks, numel], in host memory. Collective."""
        import torch
        import torch.distributed as dist

        lane, own = self.context.lanes[CONTROL.name], self.flat.values
        everyone = torch.zeros(self.context.ranks, len(own), dtype=own.dtype)
        everyone[self.context.rank] = own
        lane.submit(partial(dist.all_reduce, everyone, group=lane.group), kind="state").wait()
        return everyone

"""Synchronous data parallelism: gradients are summed over ranks in every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fsbench.axes import DENSE, DenseSync, TargetCounts

if TYPE_CHECKING:
    import torch


class AllReduce(DenseSync):
    """Sums dense gradients over ranks in every step, beside the embedding updates.

    One flat buffer, of which every parameter's gradient is a view: one operation, no copies. It is divided by the
    global target count, so that ranks with different numbers of targets weigh as their targets do.
    """

    uses = frozenset({"collectives"})
    lanes = (DENSE,)

    def attach(self, module: torch.nn.Module) -> None:
        import torch

        parameters = [p for p in module.parameters() if p.requires_grad]
        self._module = module
        self._flat = torch.zeros(
            sum(p.numel() for p in parameters), dtype=self.context.dtype, device=self.context.device
        )
        for parameter, view in zip(parameters, self._flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = view.view_as(parameter)

    def after_backward(self, step: int, counts: TargetCounts) -> None:
        self._total = counts.total
        self._pending = self.context.collectives.all_reduce(self.context.lanes[DENSE.name], self._flat, kind="dense")

    def before_step(self) -> None:
        self._pending.wait()
        self._flat.div_(max(1, self._total))

    def replicas(self) -> Mapping[str, Mapping[str, torch.Tensor]]:
        return {"trainer": self._module.state_dict()}

"""Synchronous data parallelism: gradients are summed over ranks in every step."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsbench.axes import DENSE, DenseSync, Handle, Sync, TargetCounts
from fsbench.options import ByteSize

if TYPE_CHECKING:
    import torch

    from fsbench.sim.contract import Stage, SyncPlan

_BUCKET = ByteSize(2**20)


@dataclass
class _Bucket:
    """Consecutive parameters whose gradients travel together: `flat` holds them, `missing` are not complete yet."""

    flat: torch.Tensor
    parameters: frozenset[torch.nn.Parameter]
    missing: set[torch.nn.Parameter]


class AllReduce(DenseSync):
    """Sums dense gradients over ranks in every step, in buckets that leave as backward completes them.

    One flat buffer, of which every parameter's gradient is a view: no copies. Buckets leave in one fixed order on every
    rank, last parameters first, also on a rank whose batch touched none of them (as in torch's DDP, Li et al. 2020,
    arXiv 2006.15704, section 3.2). The sum is divided by the global target count, so that ranks with different numbers
    of targets weigh as their targets do.
    """

    @dataclass(frozen=True)
    class Options:
        """`bucket`: gradients are sent together until they are at least this large."""

        bucket: ByteSize = _BUCKET

        def __post_init__(self) -> None:
            if self.bucket < 1:
                raise ValueError("bucket must be at least 1 byte")

    options: Options
    uses = frozenset({"collectives"})
    lanes = (DENSE,)

    def attach(self, module: torch.nn.Module) -> None:
        import torch

        self._module = module
        self._pending: list[Handle[torch.Tensor]] = []
        self._syncs: list[Sync] = []
        # Backward completes them about in this order: what leaves first is sent first.
        parameters = [p for p in reversed(list(module.parameters())) if p.requires_grad]
        total = sum(p.numel() for p in parameters)
        self._flat = torch.zeros(total, dtype=self.context.dtype, device=self.context.device)
        for parameter, view in zip(parameters, self._flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = view.view_as(parameter)
        self._buckets = self._cut(parameters)

    def _cut(self, parameters: list[torch.nn.Parameter]) -> list[_Bucket]:
        buckets: list[_Bucket] = []
        first, members = 0, []
        end = 0
        for parameter in parameters:
            members.append(parameter)
            end += parameter.numel()
            if (end - first) * self._flat.element_size() >= self.options.bucket or parameter is parameters[-1]:
                buckets.append(_Bucket(self._flat[first:end], frozenset(members), set(members)))
                first, members = end, []
        return buckets

    def on_gradient_ready(self, parameter: torch.nn.Parameter) -> None:
        for bucket in self._buckets[len(self._pending) :]:
            bucket.missing.discard(parameter)
        while len(self._pending) < len(self._buckets) and not self._buckets[len(self._pending)].missing:
            self._send_next()

    def after_backward(self, step: int, counts: TargetCounts) -> None:
        self._total = counts.total
        while len(self._pending) < len(self._buckets):
            self._send_next()

    def _send_next(self) -> None:
        flat = self._buckets[len(self._pending)].flat
        lane = self.context.lanes[DENSE.name]
        self._pending.append(self.context.collectives.all_reduce(lane, flat, kind="dense"))

    def before_step(self) -> None:
        for pending in self._pending:
            pending.wait()
        self._pending = []
        for bucket in self._buckets:
            bucket.missing = set(bucket.parameters)
        self._flat.div_(max(1, self._total))
        self._syncs.append(Sync(len(self._syncs), time.monotonic_ns()))

    def plan(self, stage: Stage) -> SyncPlan:
        from fsbench_strategies.sync.plans import AllReducePlan

        return AllReducePlan(stage, self.options.bucket)

    def syncs(self) -> Sequence[Sync]:
        return tuple(self._syncs)

    def replicas(self) -> Mapping[str, Mapping[str, torch.Tensor]]:
        return {"trainer": self._module.state_dict()}

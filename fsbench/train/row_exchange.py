"""One table's traffic: de-duplicate IDs, ask owners, spread rows, return gradients. For any embedding strategy."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fsbench.axes import RankContext, TableSpec
from fsbench.train.lanes import Lane
from fsbench.train.tables import RowPartition, TableShard


@dataclass
class Route:
    """Where the rows of a batch live, and how to spread them again.

    `slots`: int32[u], each wanted row's slot on its owner, rows grouped by owner. `splits`: rows per owner.
    `spread`: int64[m], the place of each ID's row among the u distinct ones.
    """

    slots: torch.Tensor
    splits: list[int]
    spread: torch.Tensor


@dataclass
class Asked:
    """What other ranks want of this one: `slots` int64[v] by asking rank, `splits` per asking rank."""

    slots: torch.Tensor
    splits: list[int]
    largest_split: int


class TableExchange:
    """The synchronous steps of an exchange on one lane."""

    def __init__(self, spec: TableSpec, context: RankContext, lane: Lane) -> None:
        self.spec = spec
        self.partition = RowPartition(spec.rows, context.ranks)
        self.shard = TableShard(spec, self.partition, context.rank, context.seed, context.dtype, context.device)
        self._context = context
        self._collectives = context.collectives
        self._lane = lane
        self._rows = self.shard.weight[:0]

    def route(self, ids: torch.Tensor) -> Route:
        """De-duplicates int64[m] IDs and groups them by owner."""
        keys, spread = torch.unique(self.partition.key(ids), return_inverse=True)
        starts = torch.arange(self._context.ranks + 1, device=ids.device) * self.partition.slots
        bounds = torch.searchsorted(keys, starts)
        return Route((keys % self.partition.slots).int(), bounds.diff().tolist(), spread)

    def ask(self, route: Route) -> Asked:
        """Sends the wanted slots to their owners.

        The counts go first, each with its sender's largest split, so that every rank knows the largest of all.
        """
        counts = torch.tensor([[n, max(route.splits)] for n in route.splits], device=route.slots.device)
        ones = [1] * self._context.ranks
        counts = self._collectives.all_to_all(self._lane, counts, ones, ones, largest_split=1, kind="ids").wait()
        splits, largest = counts[:, 0].tolist(), int(counts[:, 1].max())
        slots = self._collectives.all_to_all(
            self._lane, route.slots, route.splits, splits, largest_split=largest, kind="ids"
        ).wait()
        return Asked(slots.long(), splits, largest)

    def lookup(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows [m, dim] for int64[m] IDs, differentiable; `update` takes their gradients."""
        self._route = self.route(ids)
        self._asked = self.ask(self._route)
        rows = self._collectives.all_to_all(
            self._lane,
            self.shard.read(self._asked.slots),
            self._asked.splits,
            self._route.splits,
            largest_split=self._asked.largest_split,
            kind="rows",
        ).wait()
        self._rows = rows.requires_grad_()
        return self._rows.index_select(0, self._route.spread)

    def update(self, step: int, *, scale: float) -> None:
        """Sends the gradients of the last `lookup` to the owners, who update. `step` counts from 1."""
        gradients = self._rows.grad
        if gradients is None:  # this rank's batch was empty
            gradients = torch.zeros_like(self._rows)
        received = self._collectives.all_to_all(
            self._lane,
            gradients,
            self._route.splits,
            self._asked.splits,
            largest_split=self._asked.largest_split,
            kind="gradients",
        ).wait()
        self.shard.apply(self._asked.slots, received, step, scale=scale)

    def full(self) -> dict[str, torch.Tensor]:
        """The whole logical table and its optimizer state on every rank, in row order: [rows, ...]."""
        return {name: self._gather(tensor) for name, tensor in self.shard.tensors().items()}

    def _gather(self, local: torch.Tensor) -> torch.Tensor:
        padded = local.new_zeros(self.partition.slots, *local.shape[1:])
        padded[: len(local)] = local
        shards = self._collectives.all_gather(self._lane, padded, kind="state").wait()
        full = local.new_empty(self.spec.rows, *local.shape[1:])
        for rank in range(self._context.ranks):
            full[self.partition.ids(rank).to(full.device)] = shards[rank, : self.partition.size(rank)]
        return full

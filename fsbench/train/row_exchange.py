"""One sharded table's traffic: de-duplicate IDs, ask owners, move rows and gradients. For any embedding strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fsbench.axes import Handle, LaneSpec, RankContext, TableSpec
from fsbench.train.tables import RowPartition, TableShard


@dataclass
class Route:
    """What this rank wants, and how to spread it again.

    `slots`: int32[u], each wanted row's slot on its owner, rows grouped by owner. `splits`: rows per owner.
    `spread`: int64[m], the place of each ID's row among the u distinct ones.
    """

    slots: torch.Tensor
    splits: list[int]
    spread: torch.Tensor


@dataclass
class Asked:
    """What the ranks want of this one: `slots` int64[v] by asking rank, `splits` per asking rank.

    `largest_split`: the most rows that any rank asks of any other; every rank knows the same.
    """

    slots: torch.Tensor
    splits: list[int]
    largest_split: int


class ShardedTable:
    """This rank's shard of a table, and the exchanges about it. Methods are collective on the lane they are given."""

    def __init__(self, spec: TableSpec, context: RankContext) -> None:
        self.spec = spec
        self.partition = RowPartition(spec.rows, context.ranks)
        self.shard = TableShard(spec, self.partition, context.rank, context.seed, context.dtype, context.device)
        self._context = context

    def route(self, ids: torch.Tensor) -> Route:
        """De-duplicates int64[m] IDs and groups them by owner."""
        keys, spread = torch.unique(self.partition.key(ids), return_inverse=True)
        starts = torch.arange(self._context.ranks + 1, device=ids.device) * self.partition.slots
        bounds = torch.searchsorted(keys, starts)
        return Route((keys % self.partition.slots).int(), bounds.diff().tolist(), spread)

    def ask(self, route: Route, lane: LaneSpec) -> Asked:
        """Sends the wanted slots to their owners.

        The counts go first, each with its sender's largest split, so that every rank knows the largest of all.
        """
        own = torch.tensor(route.splits, device=route.slots.device)
        counts = torch.stack([own, own.max().expand_as(own)], dim=1)
        ones = [1] * self._context.ranks
        counts = self.exchange(lane, counts, ones, ones, 1, "ids").wait()
        splits, largest = counts[:, 0].tolist(), int(counts[:, 1].max())
        slots = self.exchange(lane, route.slots, route.splits, splits, largest, "ids").wait()
        return Asked(slots.long(), splits, largest)

    def exchange(
        self,
        lane: LaneSpec,
        rows: torch.Tensor,
        send: Sequence[int],
        receive: Sequence[int],
        largest_split: int,
        kind: str,
    ) -> Handle[torch.Tensor]:
        """An all-to-all of blocks of rows; see `Collectives.all_to_all`."""
        return self._context.collectives.all_to_all(
            self._context.lanes[lane.name], rows, send, receive, largest_split=largest_split, kind=kind
        )

    def full(self, lane: LaneSpec) -> dict[str, torch.Tensor]:
        """The whole logical table and its optimizer state on every rank, in row order: [rows, ...]."""
        return {name: self._gather(tensor, lane) for name, tensor in self.shard.tensors().items()}

    def _gather(self, local: torch.Tensor, lane: LaneSpec) -> torch.Tensor:
        padded = local.new_zeros(self.partition.slots, *local.shape[1:])
        padded[: len(local)] = local
        lanes, collectives = self._context.lanes, self._context.collectives
        shards = collectives.all_gather(lanes[lane.name], padded, kind="state").wait()
        full = local.new_empty(self.spec.rows, *local.shape[1:])
        for rank in range(self._context.ranks):
            full[self.partition.ids(rank).to(full.device)] = shards[rank, : self.partition.size(rank)]
        return full


def gradient_of(rows: torch.Tensor) -> torch.Tensor:
    """The gradient that backward left on a leaf [u, dim]; zeros where the rank's batch had no target."""
    return torch.zeros_like(rows) if rows.grad is None else rows.grad

"""One sharded table's traffic: de-duplicate IDs, ask owners, move rows and gradients. For any embedding strategy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fsbench.axes import Handle, LaneSpec, RankContext, TableSpec
from fsbench.train.distinct import Distinct
from fsbench.train.tables import RowPartition, TableShard
from fsbench.train.wire import Wire, narrowed


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


class Router:
    """Finds the owners of a table's rows."""

    def __init__(self, partition: RowPartition) -> None:
        self._partition = partition
        self._distinct = Distinct(partition.rows)

    def __call__(self, ids: torch.Tensor) -> Route:
        """De-duplicates int64[m] IDs and groups them by owner; not for two threads at once."""
        distinct, spread = self._distinct(ids)
        owners, slots = self._partition.find(distinct)
        order, place = _group(owners, self._partition.ranks)
        splits = torch.bincount(owners, minlength=self._partition.ranks).tolist()
        return Route(slots.int()[order], splits, place[spread])


class ShardedTable:
    """This rank's shard of a table, and the exchanges about it. Methods are collective on the lane they are given.

    `wire`: what rows and gradients are sent as; None leaves them as they are. `rows_asked`: by batch, how many rows
    this rank asked of each.
    """

    def __init__(self, spec: TableSpec, context: RankContext, *, wire: Wire | None = None) -> None:
        self.spec = spec
        self.partition = RowPartition(spec.rows, context.ranks)
        self.shard = TableShard(spec, self.partition, context.rank, context.seed, context.dtype, context.device)
        self.rows_asked: list[list[int]] = []
        self._context = context
        self._wire = wire
        self.route = Router(self.partition)

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
        self.rows_asked.append(route.splits)
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
        """An all-to-all of blocks of rows; see `Collectives.all_to_all`. Values travel as `wire` says."""
        return narrowed(
            self._wire,
            rows,
            lambda sent: self._context.collectives.all_to_all(
                self._context.lanes[lane.name], sent, send, receive, largest_split=largest_split, kind=kind
            ),
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


def _group(owners: torch.Tensor, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A stable order by owner, int64[u], and the place of each in it. Small integers are ordered by counting."""
    small = owners.to(torch.uint8 if ranks <= 2**8 else torch.int32)
    if owners.device.type == "cpu":
        order = torch.from_numpy(np.argsort(small.numpy(), kind="stable"))
    else:
        order = torch.argsort(small, stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    return order, place


def rows_asked(tables: Iterable[ShardedTable]) -> list[list[int]]:
    """By batch, how many rows of all tables this rank asked of each."""
    return [
        np.sum(of_batch, axis=0).tolist() for of_batch in zip(*(table.rows_asked for table in tables), strict=False)
    ]


def gradient_of(rows: torch.Tensor) -> torch.Tensor:
    """The gradient that backward left on a leaf [u, dim]; zeros where the rank's batch had no target."""
    return torch.zeros_like(rows) if rows.grad is None else rows.grad

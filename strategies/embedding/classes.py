"""Which rows two consecutive batches share: decided on the owners, who alone see what every rank asks for.

A row of batch t is *needed* if batch t + 1 has it too, on any rank; a row of batch t + 1 is *shared* if batch t has
it. Both are one bit a row. Owners send the bits back to the ranks that asked, which then know which of their
gradients are urgent, and which of their rows come early.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fsbench.axes import LaneSpec
from fsbench.train.row_exchange import Asked, Route, ShardedTable


@dataclass
class Bits:
    """One class of a batch's rows: `asked` bool[v] on the owner's side, `wanted` bool[u] on the asking side.

    `largest_set`, `largest_clear`: the most rows of either class between any two ranks; the same on every rank.
    """

    asked: torch.Tensor
    wanted: torch.Tensor
    largest_set: int = 0
    largest_clear: int = 0


@dataclass
class Met:
    """A batch of one table whose IDs have reached their owners.

    `shared`: rows that the batch before has too. `needed`: rows that the batch after has too; None until it is met.
    `place`: int64[u], where each wanted row lies when the shared ones come first, then the others. `spread`: int64[m],
    the same for each ID.
    """

    step: int
    route: Route
    asked: Asked
    shared: Bits
    needed: Bits | None = None

    def __post_init__(self) -> None:
        wanted = self.shared.wanted
        behind = int(wanted.sum()) - 1
        self.place = torch.where(wanted, wanted.cumsum(0) - 1, behind + (~wanted).cumsum(0))
        self.spread = self.place[self.route.spread]


class RowClasses:
    """The owner's memory of one table: the last batch that each of its rows was in, int64[size]."""

    def __init__(self, table: ShardedTable) -> None:
        self._table = table
        self.last_step = torch.full((len(table.shard.ids),), -1, dtype=torch.int64)

    def meet(self, step: int, ids: torch.Tensor, previous: Met | None, lane: LaneSpec) -> Met:
        """Exchanges the IDs of batch `step`, classifies its rows against `previous`, and `previous` against it.

        Without a previous batch every row counts as shared: it must be read when everything before is written.
        """
        route = self._table.route(ids)
        asked = self._table.ask(route, lane)
        if previous is None:
            shared = torch.ones(len(asked.slots), dtype=torch.bool)
            self.last_step[asked.slots] = step
            everything = torch.ones(len(route.slots), dtype=torch.bool)
            return Met(step, route, asked, Bits(shared, everything, asked.largest_split, 0))
        shared = self.last_step[asked.slots] == previous.step
        self.last_step[asked.slots] = step
        needed = self.last_step[previous.asked.slots] == step
        met = Met(step, route, asked, self._tell(shared, asked, route, lane))
        previous.needed = self._tell(needed, previous.asked, previous.route, lane)
        self._agree_on_largest(met.shared, asked, previous.needed, previous.asked, lane)
        return met

    def _tell(self, bits: torch.Tensor, asked: Asked, route: Route, lane: LaneSpec) -> Bits:
        """Owners tell the ranks that asked."""
        told = self._table.exchange(
            lane, bits.to(torch.uint8), asked.splits, route.splits, asked.largest_split, "ids"
        ).wait()
        return Bits(bits, told.bool())

    def _agree_on_largest(self, shared: Bits, asked: Asked, needed: Bits, asked_before: Asked, lane: LaneSpec) -> None:
        """Every owner sends its own four maxima to every rank, which takes the largest of each."""
        own = []
        for bits, splits in ((shared, asked.splits), (needed, asked_before.splits)):
            own += [max(count_set(bits.asked, splits)), max(count_set(~bits.asked, splits))]
        ranks = len(asked.splits)
        ones = [1] * ranks
        maxima = torch.tensor([own] * ranks, dtype=torch.int32)
        largest = self._table.exchange(lane, maxima, ones, ones, 1, "ids").wait().amax(0).tolist()
        shared.largest_set, shared.largest_clear, needed.largest_set, needed.largest_clear = largest


def count_set(bits: torch.Tensor, splits: list[int]) -> list[int]:
    """How many bits are set in each consecutive block; `splits` are the blocks' lengths."""
    ends = torch.tensor(splits, dtype=torch.int64).cumsum(0)
    before = torch.cat([torch.zeros(1, dtype=torch.int64), bits.cumsum(0)])
    return torch.cat([torch.zeros(1, dtype=torch.int64), before[ends]]).diff().tolist()

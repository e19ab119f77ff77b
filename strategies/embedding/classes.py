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
    """One class of a batch's rows: `asked` bool[v] on the owner's side, `wanted` bool[u] on the asking side."""

    asked: torch.Tensor
    wanted: torch.Tensor


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

    def select(self, merged: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Of merged rows [u, dim] those of one class, bool[u], in the order in which they are sent."""
        return merged.index_select(0, self.place[wanted].to(merged.device))


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
            self.last_step[asked.slots] = step
            shared, everything = (torch.ones(len(slots), dtype=torch.bool) for slots in (asked.slots, route.slots))
            return Met(step, route, asked, Bits(shared, everything))
        shared, needed = self.split(step, asked.slots, previous.step, previous.asked.slots)
        told_shared, told_needed = self._tell(shared, needed, asked, route, previous, lane)
        previous.needed = Bits(needed, told_needed)
        return Met(step, route, asked, Bits(shared, told_shared))

    def split(
        self, step: int, slots: torch.Tensor, before: int, slots_before: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Which of a batch's slots the batch before has too, and which of that batch's this one has: a bit each."""
        shared = self.last_step[slots] == before
        self.last_step[slots] = step
        return shared, self.last_step[slots_before] == step

    def _tell(
        self, shared: torch.Tensor, needed: torch.Tensor, asked: Asked, route: Route, previous: Met, lane: LaneSpec
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Owners tell the ranks that asked: to each in one message, of this batch first, then of the one before."""
        is_shared, splits = alternate(asked.splits, previous.asked.splits)
        message = torch.empty(len(is_shared), dtype=torch.bool)
        message[is_shared], message[~is_shared] = shared, needed
        is_shared, told_splits = alternate(route.splits, previous.route.splits)
        largest = asked.largest_split + previous.asked.largest_split
        told = self._table.exchange(lane, message.to(torch.uint8), splits, told_splits, largest, "ids").wait().bool()
        return told[is_shared], told[~is_shared]


def alternate(first: list[int], second: list[int]) -> tuple[torch.Tensor, list[int]]:
    """Blocks of two kinds in turn, by their lengths: bool[sum], where those of the first kind lie; lengths of pairs."""
    lengths = torch.tensor([first, second])
    kinds = torch.tensor([True, False]).repeat(len(first))
    return kinds.repeat_interleave(lengths.T.flatten()), lengths.sum(0).tolist()


def count_set(bits: torch.Tensor, splits: list[int]) -> list[int]:
    """How many bits are set in each consecutive block; `splits` are the blocks' lengths."""
    ends = torch.tensor(splits, dtype=torch.int64).cumsum(0)
    before = torch.cat([torch.zeros(1, dtype=torch.int64), bits.cumsum(0)])
    return torch.cat([torch.zeros(1, dtype=torch.int64), before[ends]]).diff().tolist()

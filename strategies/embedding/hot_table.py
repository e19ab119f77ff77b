"""One table some rows of which are copied on every rank: who holds what, and the messages about it.

Hot rows are numbered by *place*: 0 to h - 1, by owner, then by slot; the same on every rank. All else about them
follows from that order, so that messages carry one byte a place, no IDs and no counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fsbench.axes import CRITICAL, RankContext, TableSpec
from fsbench.train.wire import Wire
from fsbench_strategies.embedding.classes import Met, count_set
from fsbench_strategies.embedding.popularity import Popularity
from fsbench_strategies.embedding.prioritized_table import PrioritizedTable

_MOST_TIMES = 127
"""What fits into a byte beside another bit."""


@dataclass(frozen=True)
class Split:
    """A batch's IDs by temperature.

    `is_hot`: bool[m]. `touched`: bool[h], the hot places that it has; `places`: int64[t], the same as numbers.
    `spread`: where each hot ID's row lies among those. `cold`: the other IDs.
    """

    is_hot: torch.Tensor
    touched: torch.Tensor
    places: torch.Tensor
    spread: torch.Tensor
    cold: torch.Tensor


@dataclass
class HotMet(Met):
    """A batch whose cold IDs have reached their owners. `place`, `spread`: where the hot rows lie before the others."""

    split: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        hot = len(self.split.places)
        self.place += hot
        of_cold, self.spread = self.spread + hot, torch.empty(len(self.split.is_hot), dtype=torch.int64)
        self.spread[self.split.is_hot] = self.split.spread
        self.spread[~self.split.is_hot] = of_cold


@dataclass(frozen=True)
class Push:
    """What a rank has for the owners of hot rows, and wants of them.

    `times`: uint8[h], in how many batches it had each place since the last push, at most `_MOST_TIMES`; where it had
    any, the sum of their gradients, [t, dim] in the order of places. `wanted`: bool[h], the places whose values it
    needs. `scale`: what sums over ranks are multiplied with. `step`: number of the last update in it, from 1.
    """

    times: torch.Tensor
    gradients: torch.Tensor
    wanted: torch.Tensor
    scale: float
    step: int


@dataclass(frozen=True)
class Fresh:
    """Values of the hot places int64[r] that had changed, [r, dim]."""

    places: torch.Tensor
    values: torch.Tensor


class HotTable(PrioritizedTable):
    """A prioritised table whose hot rows travel apart from it, on lane `critical`.

    Memory beside the shard, on each rank: 4 B for each row of the whole table (is it hot, and where), and a copy and a
    sum of gradients for each hot row.

    `copies`: [h, dim], this rank's; `sums`, `times`: [h, dim] and uint8[h], gradients that are kept back, and of how
    many batches.
    """

    collision = "cold.collision"
    exclusive = "cold.exclusive"

    def __init__(
        self, spec: TableSpec, context: RankContext, *, decay: float, check: bool, wire: Wire | None = None
    ) -> None:
        self._decay = decay
        self._place = torch.full((spec.rows,), -1, dtype=torch.int32)
        super().__init__(spec, context, check=check, wire=wire)
        self.looked_up = {"hot": 0, "cold": 0}

    def forget(self) -> None:
        """No row is hot, nothing has been counted."""
        super().forget()
        self._popularity = Popularity(len(self.shard.ids), self._decay)
        self._hot_ids = torch.zeros(0, dtype=torch.int64)
        self._take(self._hot_ids, torch.zeros(0, dtype=torch.int64), [0] * self._context.ranks)

    @property
    def hot(self) -> int:
        """How many rows are hot."""
        return len(self._hot_ids)

    def meet(self, step: int, ids: torch.Tensor, previous: Met | None) -> HotMet:
        """On `ids`: the batch by temperature, its cold IDs met as without hot ones; counts both."""
        split = self._split(ids)
        met = super().meet(step, split.cold, previous)
        self._popularity.count(met.asked.slots)
        self.looked_up["cold"] += len(met.route.slots)
        return HotMet(met.step, met.route, met.asked, met.shared, split=split)

    def _split(self, ids: torch.Tensor) -> Split:
        place = self._place[ids]
        is_hot = place >= 0
        mine = place[is_hot].long()
        touched = torch.zeros(self.hot, dtype=torch.bool)
        touched[mine] = True
        self._touches += touched
        places = touched.nonzero().flatten()
        self.looked_up["hot"] += len(places)
        return Split(is_hot, touched, places, (touched.cumsum(0) - 1)[mine], ids[~is_hot])

    def at_hand(self, met: Met) -> list[torch.Tensor]:
        assert isinstance(met, HotMet)
        return [self.copies[met.split.places.to(self.copies.device)]]

    def renew(self, steps: int, coverage: float, least: float) -> None:
        """On `critical`, when nothing is under way: chooses the hot rows anew. `steps`: since the last time.

        `coverage`, `least`: see `Popularity.hottest`. Each owner chooses among its own rows, which are dealt by a hash:
        what makes a share of every owner's lookups makes it of all.
        """
        ranks = self._context.ranks
        counts = self.exchange(
            CRITICAL, self._touches, self._splits, [len(self._own)] * ranks, max(self._splits), "ids"
        ).wait()
        self._popularity.count(self._own, counts.view(ranks, -1).sum(0))
        self._popularity.pass_steps(steps)
        own = self._popularity.hottest(coverage, least)
        sizes = self._gather_equal(torch.tensor([len(own)]))[:, 0].tolist()
        padded = torch.zeros(max(sizes), dtype=torch.int64)
        padded[: len(own)] = self.shard.ids[own]
        told = self._gather_equal(padded)
        ids = torch.cat([told[owner, :size] for owner, size in enumerate(sizes)])
        self._take(ids, own, sizes)

    def _gather_equal(self, tensor: torch.Tensor) -> torch.Tensor:
        lane = self._context.lanes[CRITICAL.name]
        return self._context.collectives.all_gather(lane, tensor, kind="ids").wait()

    def _take(self, ids: torch.Tensor, own: torch.Tensor, sizes: list[int]) -> None:
        """Hot from now on are `ids`, by place; `own`: slots of those that this rank owns; `sizes`: number by owner."""
        self._place[self._hot_ids] = -1
        self._place[ids] = torch.arange(len(ids), dtype=torch.int32)
        self._hot_ids, self._own, self._splits = ids, own, sizes
        self._touches = torch.zeros(len(ids), dtype=torch.int32)
        self._current = torch.zeros(self._context.ranks, len(own), dtype=torch.bool)
        """On the owner: whose copy of which place is as new as the row."""
        self.copies = self.shard.weight.new_zeros(len(ids), self.spec.dim)
        self.sums = torch.zeros_like(self.copies)
        self.times = torch.zeros(len(ids), dtype=torch.uint8)

    def keep(self, split: Split, gradients: torch.Tensor) -> None:
        """Keeps gradients [t, dim] of a batch's hot rows back, on top of those before."""
        self.sums.index_add_(0, split.places.to(self.sums.device), gradients)
        self.times += split.touched & (self.times < _MOST_TIMES)

    def _take_sums(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What was kept back, as `Push.times` and its gradients; nothing is, afterwards."""
        times, self.times = self.times, torch.zeros_like(self.times)
        gradients = self.sums[times.bool().to(self.sums.device)]
        self.sums.zero_()
        return times, gradients

    def everything(self) -> torch.Tensor:
        """bool[h], all set."""
        return torch.ones(self.hot, dtype=torch.bool)

    def pull(self, step: int, wanted: torch.Tensor) -> Push:
        """A push of nothing, for values alone; they include `step` updates."""
        return Push(torch.zeros_like(self.times), self.copies[:0], wanted, 1.0, step)

    def push_of_sums(self, step: int) -> Push:
        """A push of what was kept back, for all values."""
        return Push(*self._take_sums(), self.everything(), 1.0, step)

    def push(self, push: Push) -> Fresh:
        """On `critical`: gradients to the owners, who update; back come the values that are wanted, where the copy is
        not as new as the row."""
        ranks, size, largest = self._context.ranks, len(self._own), max(self._splits)
        per_rank = [size] * ranks
        message = push.wanted + 2 * push.times
        asked = self.exchange(CRITICAL, message, self._splits, per_rank, largest, "ids").wait().view(ranks, size)
        wanted, times = (asked & 1).bool(), asked >> 1
        gradients = self.exchange(
            CRITICAL,
            push.gradients,
            count_set(push.times.bool(), self._splits),
            count_set(times.bool().flatten(), per_rank),
            largest,
            "gradients.hot",
        ).wait()
        self._update_hot(times, gradients, push)
        self._current[:, times.bool().any(0)] = False
        due = (wanted & ~self._current).flatten()
        self._current |= wanted
        told = self.exchange(CRITICAL, due.to(torch.uint8), per_rank, self._splits, largest, "ids").wait().bool()
        values = self.exchange(
            CRITICAL,
            self.shard.read(self._own.repeat(ranks)[due].to(self.shard.weight.device)),
            count_set(due, per_rank),
            count_set(told, self._splits),
            largest,
            "rows.hot",
        ).wait()
        return Fresh(told.nonzero().flatten(), values)

    def _update_hot(self, times: torch.Tensor, gradients: torch.Tensor, push: Push) -> None:
        """Each row as often as the rank that had it in the most batches had it, with its mean gradient over those.

        `times`: uint8[ranks, h] of own places; `gradients`: [v, dim], where they are not 0.
        """
        device, updates = self.shard.weight.device, times.amax(0)
        sent = times.bool().flatten()
        slots, each = self._own.repeat(len(times))[sent], updates.repeat(len(times))[sent]
        gradients = gradients / each.to(gradients)[:, None]
        rounds = int(updates.max()) if len(updates) else 0
        for nth in range(rounds):
            chosen = each > nth
            rows = slots[chosen].to(device)
            self.shard.apply(rows, gradients[chosen.to(device)], push.step - rounds + nth + 1, scale=push.scale)

    def adopt(self, fresh: Fresh) -> None:
        """Copies take the values."""
        self.copies[fresh.places.to(self.copies.device)] = fresh.values

"""Rounds in which all ranks meet in one sum, and the mean of their replicas comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

import torch

from fsbench.axes import Collectives
from fsbench.train.lanes import Lane
from fsbench_strategies.sync.exchange import FREE, Cost, Exchange
from fsbench_strategies.sync.replica import Replica
from fsbench_strategies.sync.rules import Rule

_NOTES = len(astuple(FREE))


class Payload:
    """What is summed over ranks: parameters, how many ranks train, and what the last round cost each.

    A rank that no longer trains sends zeros, so that the mean is of those that do, and stays in the sum: a round needs
    all ranks. When none trains any more, all know.

    Args:
        like: [numel], on the device of the parameters.
    """

    def __init__(self, like: torch.Tensor, rank: int, ranks: int) -> None:
        self._rank, self._numel = rank, len(like)
        self.tensor = torch.empty(self._numel + 1 + _NOTES * ranks, dtype=like.dtype, pin_memory=like.is_cuda)
        self.numbers = self.tensor[: self._numel]
        self.notes = self.tensor[self._numel + 1 :].view(ranks, _NOTES)
        """[ranks, 2], seconds as in `Cost`."""

    def fill(self, replica: Replica, *, active: bool = True, cost: Cost = FREE, keep: bool = False) -> None:
        """`active`: whether this rank trains. `keep`: see `Replica.send`."""
        self.tensor[self._numel :].zero_()
        self.tensor[self._numel] = float(active)
        self.notes[self._rank] = torch.tensor(astuple(cost))
        replica.send(self.numbers, keep=keep)
        if not active:
            self.numbers.zero_()

    @property
    def active(self) -> int:
        """After the sum: how many ranks train."""
        return round(self.tensor[self._numel].item())

    def mean(self) -> torch.Tensor:
        """After the sum, once: of the replicas that train, [numel], formed in place."""
        return self.numbers.div_(self.active)


class Averaging(Exchange):
    """Every rank's replica approaches what `rule` makes of the mean over ranks, through one all-reduce."""

    def __init__(
        self, replica: Replica, rule: Rule, collectives: Collectives, lane: Lane, rank: int, ranks: int
    ) -> None:
        super().__init__([lane], has_central=rule.central is not None)
        self._replica, self._rule, self._collectives = replica, rule, collectives
        self._payload = Payload(replica.values, rank, ranks)

    def meet(self, *, measure: bool = False, stopping: bool = False, cost: Cost = FREE) -> bool:
        """Ends for all ranks in the same round. The cost is that of the rank that spent most, by the clock of the one
        that came last: the others' time contains that one's pause."""
        payload = self._payload
        payload.fill(self._replica, active=not stopping, cost=cost, keep=measure)
        self._collectives.all_reduce(self.lanes[0], payload.tensor, kind="dense").wait()
        if not payload.active:
            return False
        self.cost = Cost(payload.notes[:, 0].max().item(), payload.notes[:, 1].min().item())
        mean = payload.mean()
        self.spread = self._replica.distance(mean) if measure else None
        self._replica.approach(self._rule.target(mean))
        return True

    def central(self) -> torch.Tensor:
        return super().central() if self._rule.central is None else self._rule.central

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self._rule.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rule.load_state_dict(state)

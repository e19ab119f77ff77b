"""What strategies share that bring replicas together: rounds of an exchange, counted."""

from __future__ import annotations

import statistics
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fsbench.axes import Sync
from fsbench_strategies.sync.exchange import FREE, Cost
from fsbench_strategies.sync.local_steps import LocalSteps

if TYPE_CHECKING:
    import torch

    from fsbench_strategies.sync.exchange import Exchange
    from fsbench_strategies.sync.replica import Replica

SPREAD_EVERY = 8
"""Rounds between two measurements of the spread, which cost a pass over the parameters each."""


class Synced(LocalSteps):
    """Replicas that meet through `exchange`.

    A strategy of two halves: when they meet (`Foreground`, `Shadow`), and how (`Averaged`, `BlockMomentum`, `Elastic`).
    Optimizer state and module buffers stay local.
    """

    @abstractmethod
    def open_replica(self) -> Replica:
        """This rank's, as the options say: called once."""

    @abstractmethod
    def open_exchange(self, replica: Replica) -> Exchange:
        """Called once."""

    def attach(self, module: torch.nn.Module) -> None:
        super().attach(module)
        self.exchange = self.open_exchange(self.open_replica())
        self.rounds = 0
        """So far, also before a checkpoint."""
        self._syncs: list[Sync] = []

    def round(self, *, stopping: bool = False, cost: Cost = FREE) -> bool:
        """See `Exchange.meet`."""
        measure = self.rounds % SPREAD_EVERY == 0
        sent = self.steps
        if not self.exchange.meet(measure=measure, stopping=stopping, cost=cost):
            return False
        self.rounds += 1
        self._syncs.append(Sync(self.steps, time.monotonic_ns(), self.exchange.spread, lag=self.steps - sent))
        return True

    def syncs(self) -> Sequence[Sync]:
        return tuple(self._syncs)

    def replicas(self) -> Mapping[str, Mapping[str, torch.Tensor]]:
        """Also `central`, where there is such a copy."""
        replicas = dict(super().replicas())  # by now no rank trains
        if self.exchange.has_central:
            replicas |= self.named({"central": self.exchange.central()})
            self.wait_for_all()  # before anybody trains again
        return replicas

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()  # by now no rank trains
        state |= {"rounds": self.rounds, "exchange": self.exchange.state_dict()}
        self.wait_for_all()  # before anybody trains again
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.rounds = state["rounds"]
        self.exchange.load_state_dict(state["exchange"])
        self.wait_for_all()

    def evidence(self) -> Mapping[str, Any]:
        """Rounds so far, and the median of the spreads that were measured when replicas were sent."""
        spreads = [sync.spread for sync in self._syncs if sync.spread is not None]
        return {"rounds": self.rounds, "spread_at_sync_p50": statistics.median(spreads) if spreads else None}

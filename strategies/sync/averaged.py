"""Replicas that meet in averages over all ranks: model averaging, and block momentum on top of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsbench.axes import LaneSpec
from fsbench_strategies.sync.synced import Synced

if TYPE_CHECKING:
    from fsbench_strategies.sync.exchange import Exchange
    from fsbench_strategies.sync.replica import Replica
    from fsbench_strategies.sync.rules import Rule

AVERAGING = LaneSpec("averaging", "dense", host=True)


class Averaged(Synced):
    """Every replica approaches the mean of all."""

    uses = frozenset({"collectives"})
    lanes = (AVERAGING,)

    def open_rule(self) -> Rule:
        """What makes the target of the mean: called once."""
        from fsbench_strategies.sync.rules import Mean

        return Mean()

    def open_exchange(self, replica: Replica) -> Exchange:
        from fsbench_strategies.sync.averaging import Averaging

        context = self.context
        lane = context.lanes[AVERAGING.name]
        return Averaging(replica, self.open_rule(), context.collectives, lane, context.rank, context.ranks)


@dataclass(frozen=True)
class MomentumOptions:
    """Options of `BlockMomentum`, to be mixed into those of when replicas meet."""

    momentum: float = 0.5
    step_size: float = 1.0
    nesterov: bool = False

    def check_momentum(self) -> None:
        """Raises:
        ValueError: a value out of its range.
        """
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum is {self.momentum}, expected at least 0 and less than 1")
        if not 0 < self.step_size < float("inf"):
            raise ValueError(f"step_size is {self.step_size}, expected more than 0")


class BlockMomentum(Averaged):
    """Every replica approaches a global copy that follows the mean with momentum. All ranks hold the same one."""

    options: MomentumOptions

    def open_rule(self) -> Rule:
        from fsbench_strategies.sync import rules

        chosen = self.options
        return rules.BlockMomentum(self.flat.values, chosen.momentum, chosen.step_size, chosen.nesterov)

"""Syncs in the foreground, at a fixed rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsbench_strategies.sync.checks import check_share
from fsbench_strategies.sync.synced import Synced

if TYPE_CHECKING:
    from fsbench_strategies.sync.replica import Replica


class Foreground(Synced):
    """A round after every k own steps, while training waits.

    Nothing is learned meanwhile, so that `pull` and `delta` would be one.
    """

    @dataclass(frozen=True)
    class Options:
        """`every`: own steps between two rounds, of all workers of a rank. `alpha`: how far a replica moves to the
        target, in (0, 1]."""

        every: int = 5
        alpha: float = 1.0

        def __post_init__(self) -> None:
            if self.every < 1:
                raise ValueError(f"every is {self.every}, expected at least 1")
            check_share("alpha", self.alpha)

    options: Options

    def open_replica(self) -> Replica:
        from fsbench_strategies.sync.replica import Replica

        return Replica(self.flat.values, self.options.alpha)

    def after_step(self) -> None:
        super().after_step()
        if self.steps % self.options.every == 0:
            with self.context.standstill(self.exchange.lanes[0]):
                self.round()

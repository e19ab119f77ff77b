"""How a rank's replica meets those of others, whenever a strategy wants it to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from fsbench.train.lanes import Lane


@dataclass(frozen=True)
class Cost:
    """Seconds that a round took a rank: of its lanes' threads, and by the clock."""

    cpu_s: float = 0.0
    wall_s: float = 0.0


FREE = Cost()


class Exchange(ABC):
    """One rank's side of it. `meet` is a round: the replica is sent as it is, and moves towards what comes back.

    `lanes`: those whose threads do the work; a background loop runs on the first one's. `has_central`: whether there is
    a copy besides the replicas, which they are drawn to.
    `cost`: what this rank has to reckon a round with, by the last one; of all ranks if they meet in rounds.
    `spread`: how far the replica was from what all of them make up when it was sent, if that was measured.
    """

    def __init__(self, lanes: Sequence[Lane], *, has_central: bool) -> None:
        self.lanes = lanes
        self.has_central = has_central
        self.cost = FREE
        self.spread: float | None = None

    @abstractmethod
    def meet(self, *, measure: bool = False, stopping: bool = False, cost: Cost = FREE) -> bool:
        """A round; False if it was none, since every rank that has a part in it is stopping.

        `measure`: the spread. `stopping`: this rank no longer trains. `cost`: of its own last round, for `cost`.
        """

    def central(self) -> torch.Tensor:
        """The central copy, [numel], in host memory. Every rank gets the same while none trains."""
        raise NotImplementedError(f"{type(self).__name__} has no central copy")

    def state_dict(self) -> dict[str, torch.Tensor]:
        """What replicas do not hold. Every rank gets the same while none trains."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Every rank loads the same."""

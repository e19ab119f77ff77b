"""From the mean of the replicas to what they are drawn to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class Mean:
    """The mean itself: model averaging."""

    central: torch.Tensor | None = None

    def target(self, mean: torch.Tensor) -> torch.Tensor:
        return mean

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class BlockMomentum:
    """A global copy that goes where the mean went, with momentum (Chen and Huo 2016, BMUF).

    It is SGD on the global copy g, as torch has it, whose gradient is g - mean and whose learning rate is `step_size`.
    Written as the mean and what goes beyond: without momentum, and with step size 1, it is the mean to the last bit.

    Args:
        initial: [numel], equal on every rank. All that follows is too, as the means are.
        momentum: in [0, 1).
        nesterov: whether g is ahead by what momentum will add anyway.
    """

    def __init__(self, initial: torch.Tensor, momentum: float, step_size: float, nesterov: bool) -> None:
        self.central: torch.Tensor = initial.to("cpu", copy=True)
        self._velocity = torch.zeros_like(self.central)
        self._momentum, self._step_size, self._nesterov = momentum, step_size, nesterov

    def target(self, mean: torch.Tensor) -> torch.Tensor:
        """The global copy after a round with this mean, [numel]."""
        progress = mean - self.central
        beyond = self._momentum * self._velocity
        self._velocity = torch.add(beyond, progress, alpha=self._step_size)
        if self._nesterov:
            beyond = self._momentum * self._velocity
        self.central = (mean + beyond).add_(progress, alpha=self._step_size - 1)
        return self.central

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"central": self.central, "velocity": self._velocity}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.central, self._velocity = (state[name].to("cpu", copy=True) for name in ("central", "velocity"))


Rule = Mean | BlockMomentum

"""Gradients that become complete, in one order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class InOrder:
    """Passes on which gradients are complete in the order of `parameters`, each once a step.

    Who is told may send at once. On NCCL ranks that send on two lanes in different orders can wait for each other
    forever, and backward comes to two groups in an order that depends on what was in the batch.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], tell: Callable[[torch.nn.Parameter], None]) -> None:
        self._parameters, self._tell = parameters, tell
        self._reset()

    def _reset(self) -> None:
        self._left = list(reversed(self._parameters))
        self._complete: set[torch.nn.Parameter] = set()

    def complete(self, parameter: torch.nn.Parameter) -> None:
        """It is passed on as soon as those before it are."""
        self._complete.add(parameter)
        while self._left and self._left[-1] in self._complete:
            self._tell(self._left.pop())

    def end(self) -> None:
        """After backward: a gradient that nothing contributed to is complete too."""
        while self._left:
            self._tell(self._left.pop())
        self._reset()

"""How fast each rank is beside the others, from what it trained and how long that took."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

KEPT = 0.85
"""What is left of a step's weight a step later: half of it goes in 4 steps, 19 parts in 20 in 18."""
SLOWEST = 1 / 64
"""No rank counts as slower than this, beside the fastest: it would never be given anything to prove otherwise."""


class RankSpeeds:
    """Predicted cost over measured seconds of each rank, beside the mean of the ranks; averaged over steps that fade.

    A balancer that follows these speeds makes the *measured* times equal, whatever the costs leave out: it stops moving
    work where they are.

    Every rank computes the speeds for itself and all must agree to the bit: only elementwise arithmetic and `cumsum`.
    """

    def __init__(self, ranks: int) -> None:
        self._sum = np.zeros(ranks)
        self._weight = np.zeros(ranks)

    def observe(self, cost: Float64, seconds: Float64) -> None:
        """One step: predicted cost of what each rank trained, and its compute; float64[ranks] each, seconds above 0.

        A rank that trained nothing keeps the speed it had.
        """
        told = cost > 0
        if told.any():
            pace = cost[told] / seconds[told]
            # Beside the mean: costs may change their unit, and a step that was slow for all tells nothing.
            self._sum[told] = KEPT * self._sum[told] + pace / (pace.cumsum()[-1] / len(pace))
            self._weight[told] = KEPT * self._weight[told] + 1

    def relative(self) -> Float64:
        """float64[ranks], the fastest rank is 1; 1 also where nothing is known."""
        known = self._weight > 0
        measured = self._sum[known] / self._weight[known]
        speeds = np.ones(len(known))
        speeds[known] = np.maximum(measured / measured.max(initial=0.0), SLOWEST)
        return speeds

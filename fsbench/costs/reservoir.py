"""A uniform sample of a stream of unknown length, in one pass and little memory."""

from __future__ import annotations

import numpy as np


class Reservoir:
    """Which items of a stream to keep so that, wherever it ends, each item seen is kept with the same probability.

    Vitter's algorithm R ("Random Sampling with a Reservoir", 1985).
    """

    def __init__(self, size: int, seed: int) -> None:
        self.seen = 0
        self._size = size
        self._random = np.random.default_rng(seed)

    def place(self) -> int | None:
        """For the next item: its place in the reservoir, where it replaces what is there, or None if it is passed by.

        Places are taken in order until the reservoir is full.
        """
        drawn = self.seen if self.seen < self._size else int(self._random.integers(self.seen + 1))
        self.seen += 1
        return drawn if drawn < self._size else None

"""Which rows of a shard are asked for most: counted as they are asked, so that drift is followed."""

from __future__ import annotations

import torch


class Popularity:
    """An owner's counts, float32[rows], and over how many steps; both fade as they are looked at.

    An exponentially decayed count a row: no sketch is needed where the owner holds an array by row anyway (its shard).

    Args:
        decay: what remains of the counts after each `hottest`, 0 to 1.
    """

    def __init__(self, rows: int, decay: float) -> None:
        self._counts = torch.zeros(rows)
        self._steps = 0.0
        self._decay = decay

    def count(self, slots: torch.Tensor, times: torch.Tensor | None = None) -> None:
        """Adds int64[m] slots, repeats allowed, each once or `times` [m]."""
        self._counts.index_add_(0, slots, torch.ones(len(slots)) if times is None else times.float())

    def pass_steps(self, steps: int) -> None:
        self._steps += steps

    def hottest(self, coverage: float, least: float) -> torch.Tensor:
        """int64[h], ascending: the fewest slots that make `coverage` of what was counted; of these, all that were asked
        for more than once, and at least `least` times a step. What is known fades afterwards."""
        asked = self._counts.nonzero().flatten()
        falling = asked[self._counts[asked].argsort(descending=True, stable=True)]
        mass = self._counts[falling].double().cumsum(0)
        enough = int(torch.searchsorted(mass, coverage * mass[-1])) + 1 if len(mass) else 0
        hot = falling[:enough]
        counts = self._counts[hot]
        hot = hot[(counts > 1) & (counts >= least * self._steps)]
        self._counts *= self._decay
        self._steps *= self._decay
        return hot.sort().values

"""A global batch that is being balanced: who has what, and what would be enough."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fsbench.axes import BatchMeta

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

TOLERANCE = 1e-4
"""Differences below this share of a rank's time count as none: the noise of any machine is far above it."""

# Every rank computes the assignment for itself, and all must agree to the bit, on different CPUs too. Hence, here and
# in what works on a `Split`, only element-wise arithmetic, `cumsum` and `bincount`, which add in one order; never
# `sum` or `@` of floats, whose order varies.


@dataclass
class Split:
    """Which rank has which sample of a batch.

    Samples are in order of rising cost, ties by global index: `order`, int64[n], holds their global indices. `costs`,
    `tokens`, `bytes`, [n]: as in the batch, in this order; `home`, int64[n]: the rank that loaded each; `rank_of`,
    int64[n]: the rank that has it. `speeds`: float64[ranks]. `token_limit`: most tokens a rank may have, or None.
    `free`: whether ranks may have any number of samples; otherwise counts stay as they are. `loads`: float64[ranks],
    the cost of what each rank has; `held`: int64[ranks], its tokens.
    """

    order: Int64
    costs: Float64
    tokens: Int64
    bytes: Int64
    home: Int64
    rank_of: Int64
    speeds: Float64
    token_limit: int | None
    free: bool
    loads: Float64 = field(init=False)
    held: Int64 = field(init=False)

    @classmethod
    def of(cls, batch: BatchMeta, assignment: Int64, *, free: bool) -> Split:
        order = rising(batch.costs)
        return cls(
            order=order,
            costs=batch.costs[order],
            tokens=batch.tokens[order],
            bytes=batch.bytes[order],
            home=batch.source[order].astype(np.int64),
            rank_of=assignment[order].astype(np.int64),
            speeds=batch.speeds,
            token_limit=batch.token_limit,
            free=free,
        )

    def __post_init__(self) -> None:
        self.give(self.rank_of)

    def give(self, rank_of: Int64) -> None:
        """Every sample to the rank that `rank_of`, int64[n], says."""
        self.rank_of = rank_of
        self.loads = np.bincount(rank_of, self.costs, minlength=len(self.speeds))
        self.held = np.bincount(rank_of, self.tokens, minlength=len(self.speeds)).astype(np.int64)

    def restart(self, assignment: Int64) -> Split:
        """The same samples, assigned otherwise: int64[n] in global order."""
        return replace(self, rank_of=assignment[self.order])

    @property
    def assignment(self) -> Int64:
        """int64[n], the rank of each sample in global order."""
        assignment = np.empty_like(self.rank_of)
        assignment[self.order] = self.rank_of
        return assignment

    @property
    def seconds(self) -> Float64:
        """float64[ranks]: load over speed, in units of its own. The step takes as long as the largest."""
        return self.loads / self.speeds

    @property
    def slowest(self) -> float:
        return float(self.seconds.max())

    @cached_property
    def bound(self) -> float:
        """No assignment makes the slowest rank faster: the mean, or the largest sample on the fastest rank.

        With equal counts the largest sample does not come alone.
        """
        if not len(self.costs):
            return 0.0
        company = 0 if self.free else len(self.costs) // len(self.speeds) - 1
        upto = np.concatenate(([0.0], self.costs.cumsum()))
        mean = upto[-1] / self.speeds.cumsum()[-1]
        return float(max(mean, (self.costs[-1] + upto[max(company, 0)]) / self.speeds.max()))

    @property
    def enough(self) -> float:
        """Ranks at most so slow need no more balancing."""
        return self.bound * (1 + TOLERANCE)

    @property
    def excess_tokens(self) -> Int64:
        """int64[ranks]: tokens above the limit."""
        return np.maximum(self.held - self.token_limit, 0) if self.token_limit is not None else np.zeros_like(self.held)

    @property
    def moved_bytes(self) -> int:
        return int(self.bytes[self.rank_of != self.home].sum())


def rising(values: Float64) -> Int64:
    """`argsort(kind="stable")`, at a third of the time where numpy has vector units for sorting, but not for stable.

    Which of equal values comes first would then depend on the CPU: they are put in order afterwards.
    """
    order = np.argsort(values)
    in_order = values[order]
    ties = np.concatenate(([0], (in_order[1:] != in_order[:-1]).cumsum()))[: len(values)]
    return np.sort(ties * len(values) + order) % max(len(values), 1)

"""What the assignment of a global batch means for the ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fsbench.axes import BatchMeta
from fsbench.samples import Samples

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Own:
    """What this rank trains: its samples, the operations of each float64[n], and the cost of a batch beside theirs."""

    samples: Samples
    flops: Float64
    fixed: float


@dataclass(frozen=True)
class ShardStats:
    """`cost`: summed over each rank's samples, float64[ranks]; `samples`, `tokens` and `longest` history: int64[ranks].

    `fixed`: cost of a rank-batch beside that of its samples; `speeds`: as the balancer saw them, float64[ranks].
    `moved`: samples that changed rank; `own_bytes`, `own_flops`: of this rank's samples. Where ranks load apart, arrays
    are of this rank alone: [1].
    """

    cost: Float64
    samples: Int64
    tokens: Int64
    longest: Int64
    fixed: float
    speeds: Float64
    moved: int
    own_bytes: int
    own_flops: float

    @property
    def predicted(self) -> Float64:
        """float64[ranks], how long the ranks should take, in the unit of the costs."""
        return (self.cost + self.fixed) / self.speeds

    @classmethod
    def of_all(cls, meta: BatchMeta, assignment: Int64, own: Own) -> ShardStats:
        """Of all ranks, the same on each but for its own."""
        longest = np.zeros(meta.ranks, np.int64)
        np.maximum.at(longest, assignment, meta.tokens)
        return cls(
            cost=np.bincount(assignment, weights=meta.costs, minlength=meta.ranks).astype(np.float64),
            samples=np.bincount(assignment, minlength=meta.ranks),
            tokens=np.bincount(assignment, weights=meta.tokens, minlength=meta.ranks).astype(np.int64),
            longest=longest,
            fixed=own.fixed,
            speeds=meta.speeds,
            moved=int((assignment != meta.source).sum()),
            own_bytes=int(own.samples.bytes.sum()),
            own_flops=float(own.flops.sum()),
        )

    @classmethod
    def of_one(cls, costs: Float64, own: Own) -> ShardStats:
        """Of this rank, which trains what it loads."""
        tokens = own.samples.tokens
        return cls(
            cost=costs.sum(keepdims=True),
            samples=np.array([len(own.samples)]),
            tokens=tokens.sum(keepdims=True),
            longest=np.array([tokens.max(initial=0)]),
            fixed=own.fixed,
            speeds=np.ones(1),
            moved=0,
            own_bytes=int(own.samples.bytes.sum()),
            own_flops=float(own.flops.sum()),
        )

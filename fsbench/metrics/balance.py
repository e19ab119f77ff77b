"""What an assignment of samples to ranks means, from costs and lengths alone: no run, no clock."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


def straggler_share(costs: Float64) -> float | None:
    """The share of the ranks' time that is waiting for the slowest, if time is cost and nothing else takes any.

    `costs`: float64[batches, ranks], each rank's work in each global batch. A batch takes as long as its costliest
    rank, so 1 - sum of means / sum of maxima over the batches; None without work. FreeScale's straggler percentage (the
    mean over ranks of idle time over iteration time) is this for one batch.
    """
    slowest = costs.max(axis=1, initial=0).sum()
    return float(1 - costs.mean(axis=1).sum() / slowest) if slowest > 0 else None


def least_straggler_share(costs: Float64, costliest: Float64) -> float | None:
    """What no assignment of the same samples to the same ranks gets below, for ranks of one speed.

    `costs` as above; `costliest`: float64[batches, ranks], the costliest sample of each. A batch takes at least as long
    as the mean rank, and as its costliest sample, which cannot be divided.
    """
    mean = costs.mean(axis=1)
    slowest = np.maximum(mean, costliest.max(axis=1, initial=0)).sum()
    return float(1 - mean.sum() / slowest) if slowest > 0 else None


def padding_share(samples: Int64, tokens: NDArray, longest: NDArray) -> float | None:
    """The share of padding, if each rank padded its batch to the longest of its samples: the metric `padding`.

    Arrays of one shape, an entry for each batch of a rank: how many samples, their tokens together, and the tokens of
    the longest. None without tokens. FreeScale's sparsity.
    """
    padded = (samples * longest).sum()
    return float(1 - tokens.sum() / padded) if padded > 0 else None

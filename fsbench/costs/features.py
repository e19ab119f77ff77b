"""What compute time is fitted to: a sample in numbers, and their sums over a rank-batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fsbench.samples import Samples

Float64 = NDArray[np.float64]

BATCH = "batch"
"""The feature that is 1 for every rank-batch: what a step costs whatever it trains."""


class Described(Protocol):
    """The part of a workload that describes samples."""

    def cost_features(self, samples: Samples) -> Mapping[str, Float64]: ...


def of_samples(workload: Described, samples: Samples) -> dict[str, Float64]:
    """By name, float64[n]: 1, the history's length L, L^2, and what the workload adds."""
    tokens = samples.tokens.astype(np.float64)
    return {
        "sample": np.ones(len(samples)),
        "token": tokens,
        "token^2": tokens**2,
        **workload.cost_features(samples),
    }


def of_batch(workload: Described, samples: Samples) -> dict[str, float]:
    """By name: the sums over the samples, then 1 for the batch.

    The batch comes last: where every rank-batch has as many samples, nobody can tell its time from theirs, and a fit
    gives it to the one that comes first.
    """
    sums = {name: float(values.sum()) for name, values in of_samples(workload, samples).items()}
    return {**sums, BATCH: 1.0}

"""Fitting compute seconds to features: all at once, or as they come in."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from fsbench.costs.nonnegative import nonnegative_least_squares

Float64 = NDArray[np.float64]


class RecursiveFit:
    """Recursive least squares with forgetting, in information form, non-negative, of *relative* errors.

    Relative, because the noise of a measured time grows with it, and because an error is felt as a share of the step.
    What is kept is the normal equations, [k, k] and [k]: with `keep` 1 they are those of all rows at once, and the
    solution is the batch solution, however the rows came in.

    Args:
        size: k, the number of coefficients.
        keep: what is left of the weight of earlier rows when new ones are added, 0 to 1.
    """

    def __init__(self, size: int, keep: float = 1.0) -> None:
        self.rows = 0
        """How many were added."""
        self._keep = keep
        self._gram = np.zeros((size, size))
        self._moment = np.zeros(size)

    def add(self, features: Float64, seconds: Float64) -> None:
        """Adds rows, features [m, k] and what they took, [m], all above 0."""
        relative = features / seconds[:, None]
        self._gram = self._keep * self._gram + relative.T @ relative
        self._moment = self._keep * self._moment + relative.sum(axis=0)
        self.rows += len(seconds)

    def coefficients(self) -> Float64:
        """float64[k], all >= 0."""
        return nonnegative_least_squares(self._gram, self._moment)


def fit(features: Float64, seconds: Float64) -> Float64:
    """The coefficients >= 0, float64[k], of the least relative squared error over rows [m, k] and [m]."""
    whole = RecursiveFit(features.shape[1])
    whole.add(features, seconds)
    return whole.coefficients()


def relative_errors(predicted: Float64, seconds: Float64) -> Float64:
    """|predicted - seconds| / seconds, elementwise."""
    return np.abs(predicted - seconds) / seconds


class Errors:
    """How far predictions were from what was then measured, over the last `STEPS` steps."""

    STEPS = 1000

    def __init__(self) -> None:
        self._steps: deque[tuple[Float64, Float64]] = deque(maxlen=self.STEPS)

    def add(self, predicted: Float64, seconds: Float64) -> None:
        """Of the rank-batches of a step, float64[ranks] each, all above 0."""
        self._steps.append((predicted, seconds))

    def summary(self) -> dict[str, float]:
        """`rank_batches`: how many. `scale`: the median of measured over predicted. `median`, `p95`: relative errors of
        what was predicted times `scale`, since only ratios matter to a balancer."""
        if not self._steps:
            return {"rank_batches": 0}
        predicted, seconds = (np.concatenate(column) for column in zip(*self._steps, strict=True))
        scale = float(np.median(seconds / predicted))
        return {"rank_batches": len(seconds), "scale": scale, **quantiles(relative_errors(predicted * scale, seconds))}


def quantiles(errors: Float64) -> dict[str, float]:
    """The median and the 95th percentile."""
    median, p95 = np.percentile(errors, [50, 95]).tolist()
    return {"median": median, "p95": p95}

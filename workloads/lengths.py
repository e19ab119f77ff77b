"""History lengths from a gamma distribution, a pure function of uniform numbers."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fsbench.samples import Int64

# The distribution function is 1 to the last bit of a float64 long before this many scales.
_FAR = 60.0


class GammaLengths:
    """ceil(gamma(shape, scale)), clipped to [shortest, longest].

    Drawn by inverting a table of the distribution function rather than by a generator's gamma sampler: a
    length then depends on its own uniform number only, not on how many were drawn before it or on numpy's
    release.
    """

    def __init__(self, shape: float, scale: float, shortest: int, longest: int) -> None:
        self._shortest = shortest
        self._below_longest = gamma_cdf(np.arange(shortest, longest) / scale, shape)

    @property
    def mean(self) -> float:
        """Of the lengths, exact."""
        return self._shortest + float((1 - self._below_longest).sum())

    def __call__(self, uniform: NDArray[np.float64]) -> Int64:
        """One length for each number in [0, 1), int64 of the same shape; it grows with the number."""
        return self._shortest + np.searchsorted(self._below_longest, uniform).astype(np.int64)


def gamma_cdf(x: NDArray[np.float64], shape: float) -> NDArray[np.float64]:
    """P(gamma(shape, 1) <= x), float64, for x >= 0.

    By the series x^a e^-x / G(a + 1) * (1 + x / (a + 1) + x^2 / ((a + 1) (a + 2)) + ...), whose terms are
    positive.
    """
    x = np.minimum(x, _FAR)
    term = np.ones_like(x)
    total = np.ones_like(x)
    n = 0
    while np.any(term > total * 1e-17):
        n += 1
        term = term * x / (shape + n)
        total = total + term
    return np.minimum(x**shape * np.exp(-x) / math.gamma(shape + 1) * total, 1.0)

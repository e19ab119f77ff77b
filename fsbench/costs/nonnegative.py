"""Least squares with non-negative coefficients: time is spent, never won back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

_NO_GAIN = 1e-10
"""A slope below this share of the steepest one is rounding."""


def nonnegative_least_squares(gram: Float64, moment: Float64) -> Float64:
    """The x >= 0 with the least |A x - y|, from gram = A'A [k, k] and moment = A'y [k].

    The active-set method of Lawson and Hanson ("Solving Least Squares Problems", 1974, chapter 23): coefficients are
    freed one by one, the steepest first, and pinned to 0 again where the solution among the free ones would turn
    negative. Of columns that say the same, one gets the coefficient.
    """
    scale = np.sqrt(np.diagonal(gram))
    scale = np.where(scale > 0, scale, 1.0)
    gram, moment = gram / np.outer(scale, scale), moment / scale
    x, free = np.zeros(len(moment)), np.zeros(len(moment), bool)
    # Each round lowers the error but for rounding; that there is an end to them must not depend on it.
    for _ in range(3 * len(moment)):
        slope = np.where(free, -np.inf, moment - gram @ x)
        steepest = int(np.argmax(slope))
        if slope[steepest] <= _NO_GAIN * np.abs(moment).max():
            break
        free[steepest] = True
        x = _settle(gram, moment, x, free)
    return x / scale


def _settle(gram: Float64, moment: Float64, x: Float64, free: NDArray[np.bool_]) -> Float64:
    """The solution among the `free` coefficients, of which those that would turn negative are pinned to 0."""
    while free.any():
        among = np.zeros_like(x)
        among[free] = np.linalg.lstsq(gram[np.ix_(free, free)], moment[free], rcond=None)[0]
        negative = free & (among <= 0)
        if not negative.any():
            return among
        # As far towards it as the first of them allows.
        reach = np.where(negative, x / np.maximum(x - among, np.finfo(float).tiny), np.inf)
        x = x + reach.min() * (among - x)
        free &= reach > reach.min()
        x = np.where(free, x, 0.0)
    return np.zeros_like(x)

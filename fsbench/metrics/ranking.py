"""NDCG@k and HR@k of next-item rankings, from integers.

Per user, two counts say everything: items scored strictly above the target, and other items tied with it.
They add up over ranks in any order, so the quality of a checkpoint has the same bits on any number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A mean over users and its standard error (None for a single user, whose spread is unknown)."""

    mean: float
    standard_error: float | None


@dataclass(frozen=True)
class RankingQuality:
    """Quality over `users` users, up to place `k`."""

    users: int
    k: int
    ndcg: Estimate
    hr: Estimate


def ranking_quality(counts: NDArray[np.int64], k: int = 10) -> RankingQuality | None:
    """Quality from `counts`, int64[users, 2]: items above the target, items tied with it. None without users.

    Ties are broken at random, and the expectation over that is reported: a user's gain is the mean gain of
    the places `above` to `above + tied`. A model that scores everything alike so gets what chance would.

    Raises:
        ValueError: a negative count.
    """
    if (counts < 0).any():
        user = int(np.argmax((counts < 0).any(axis=1)))
        raise ValueError(f"user {user}: counts {counts[user].tolist()} are negative")
    if not len(counts):
        return None
    # With one relevant item the best ranking gains 1, so a gain needs no normalising.
    ndcg = expected_gain(counts, 1 / np.log2(np.arange(k) + 2.0))
    hr = expected_gain(counts, np.ones(k))
    return RankingQuality(len(counts), k, _estimate(ndcg), _estimate(hr))


def expected_gain(counts: NDArray[np.int64], gains: Float64) -> Float64:
    """float64[users]: mean over the tied places of `gains` (by place from the top, 0 after the last)."""
    above, tied = counts[:, 0], counts[:, 1]
    gained_before = np.concatenate(([0.0], np.cumsum(gains)))
    first, last = np.minimum(above, len(gains)), np.minimum(above + tied + 1, len(gains))
    return (gained_before[last] - gained_before[first]) / (tied + 1)


def _estimate(values: Float64) -> Estimate:
    n = len(values)
    return Estimate(float(values.mean()), float(values.std(ddof=1) / np.sqrt(n)) if n > 1 else None)

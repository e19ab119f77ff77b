"""Normalised entropy and AUC of click-through predictions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


def normalised_entropy(logits: Float64, clicked: NDArray[np.bool_]) -> float | None:
    """Mean log loss over the entropy of the click rate of the same samples, both [n]; None if all are alike.

    He et al. 2014, "Practical Lessons from Predicting Clicks on Ads at Facebook", as torchrec's `NEMetric` has it.
    Always predicting the click rate gives 1; less is better.
    """
    rate = clicked.mean() if len(clicked) else 0.0
    if not 0 < rate < 1:
        return None
    # log(1 + e^z) - yz: no probability that rounds to 0 or 1 comes between.
    losses = np.logaddexp(0, logits) - np.where(clicked, logits, 0)
    return float(losses.mean() / -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate)))


def auc(scores: Float64, clicked: NDArray[np.bool_]) -> float | None:
    """The share of pairs of a clicked and another sample in which the clicked one scores higher, ties counted half.

    `scores`, `clicked`: [n]. None if there is no such pair.
    """
    clicks, others = int(clicked.sum()), int((~clicked).sum())
    if not clicks or not others:
        return None
    _, score, count = np.unique(scores, return_inverse=True, return_counts=True)
    # Twice the mean place of each group of ties, places from 1: whole numbers, so that the sum is exact.
    twice_place = (2 * np.cumsum(count) - count + 1)[score]
    above = int(twice_place[clicked].sum()) - clicks * (clicks + 1)
    return above / (2 * clicks * others)

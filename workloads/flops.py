"""Floating-point operations of a model, from real lengths: what balancing weighs and TFLOP/s is made of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BACKWARD_AND_FORWARD = 3
"""Backward costs two forwards: each product has a gradient for its input and one for its weights."""


def causal_transformer(
    lengths: NDArray[np.int64],
    targets: NDArray[np.int64],
    *,
    dim: int,
    layers: int,
    ffn: int,
    negatives: int,
) -> NDArray[np.float64]:
    """Forward and backward operations of each sample under a sampled softmax, float64[n].

    With L tokens, T targets, 2 operations a multiply-add, and matrix products only:

        forward  = layers * (8 dim^2 L          query, key, value and output projections
                             + 4 dim ffn L      the two products of the feed-forward block
                             + 2 dim L (L + 1)) queries by keys, weights by values: L (L + 1) / 2 pairs
                   + 2 dim (negatives + 1) T    the scores
        training = 3 * forward

    Args:
        lengths: int64[n], tokens of each sample.
        targets: int64[n], label-carrying positions of each sample.
        ffn: width inside the feed-forward block.
        negatives: items scored beside the target at each target.

    Source: Kaplan et al., "Scaling Laws for Neural Language Models" (2020), table 1, with the attention over
    the causal half instead of the whole square.
    """
    tokens = lengths.astype(np.float64)
    layer = (8 * dim**2 + 4 * dim * ffn) * tokens + 2 * dim * tokens * (tokens + 1)
    scores = 2.0 * dim * (negatives + 1) * targets
    return BACKWARD_AND_FORWARD * (layers * layer + scores)

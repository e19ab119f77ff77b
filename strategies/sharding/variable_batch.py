"""FreeScale's balancing at a variable batch size (arXiv 2604.24073): segments of near equal weight.

A sample weighs L**alpha, L its length. The global batch, sorted by falling length, is cut into R contiguous segments
of near equal weight, one a rank: rank 0 trains few long histories, the last rank many short ones. Lengths within a
rank are alike, so that padding is small and kernels are even.

**AutoTune.** No alpha is quite right. Each rank has a factor, its share of the weight, that follows the measured times:
after a step it is multiplied by (mean time / the rank's time)**eta, and all are scaled to a mean of 1. As rank r always
gets the r-th band of lengths, its factor makes up for the error of alpha in that band, and for the rank's speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fsbench.axes import BatchMeta, Sharding
from fsbench_strategies.sharding.checks import check_batch, within_token_limit

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

SMALLEST_FACTOR, LARGEST_FACTOR = 1 / 16, 16.0
"""No measurement, however odd, takes a rank's share further from its speed's."""


class VariableBatch(Sharding):
    """FreeScale's variable batch size: segments of near equal weight in order of length, tuned by measured times."""

    @dataclass(frozen=True)
    class Options(Sharding.Options):
        """`alpha`: a sample of length L weighs L**alpha; 1 where projections dominate, 2 where attention does. `eta`:
        how fast AutoTune follows the measured times; 0 turns it off, and only then is a run repeatable."""

        alpha: float = 1.0
        eta: float = 0.25

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.alpha < 0:
                raise ValueError(f"alpha is {self.alpha}, expected at least 0")
            if not 0 <= self.eta <= 1:
                raise ValueError(f"eta is {self.eta}, expected 0 to 1")

    options: Options
    lookahead: ClassVar[int] = 1

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options)
        self._factors: Float64 | None = None

    @property
    def repeatable(self) -> bool:
        return self.options.eta == 0

    def assign(self, batch: BatchMeta) -> Int64:
        """The rank of each sample, int64[n]; equal lengths go by global index.

        Every rank gets a sample where there are enough. Until times are measured, shares follow `batch.speeds`. Raises
        what `checks` refuses.
        """
        check_batch(batch)
        falling = np.argsort(-batch.tokens, kind="stable")
        longest = max(1, batch.tokens.max(initial=0))  # beside which lengths are taken: powers would overflow
        weights = _rounded((batch.tokens[falling] / longest) ** self.options.alpha)
        shares = batch.speeds if self._factors is None else batch.speeds * self._factors
        assignment = np.empty(len(weights), np.int64)
        assignment[falling] = np.searchsorted(cut(weights, shares), np.arange(len(weights)), side="right")
        return within_token_limit(batch, assignment)

    def observe(self, seconds: Float64) -> None:
        """AutoTune."""
        factors = np.ones(len(seconds)) if self._factors is None else self._factors
        factors = factors * (_mean(seconds) / seconds) ** self.options.eta
        self._factors = _rounded(np.clip(factors / _mean(factors), SMALLEST_FACTOR, LARGEST_FACTOR))

    def state_dict(self) -> dict[str, Any]:
        return {"factors": None if self._factors is None else self._factors.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._factors = None if state["factors"] is None else np.array(state["factors"])

    def evidence(self) -> Mapping[str, Any]:
        return self.state_dict()


def cut(weights: Float64, shares: Float64) -> Int64:
    """Where each segment but the first begins, int64[ranks - 1], for weights [n] in order and the ranks' shares.

    Samples that all weigh nothing weigh alike.
    """
    n, ranks = len(weights), len(shares)
    if not weights.any():
        weights = np.ones(n)
    upto = np.concatenate(([0.0], weights.cumsum()))
    wanted = upto[-1] * (shares.cumsum() / shares.cumsum()[-1])[:-1]
    middles = (upto[1:] + upto[:-1]) / 2
    cuts = np.searchsorted(middles, wanted)  # a sample on a border goes where more of it lies
    if n < ranks:
        return np.minimum(np.arange(1, ranks), n)
    # At least one sample a rank: push cuts up from the left, then down from the right.
    first = np.arange(1, ranks)
    cuts = np.maximum.accumulate(np.maximum(cuts - first, 0)) + first
    return np.minimum(cuts, n - ranks + first)


def _rounded(powers: Float64) -> Float64:
    """CPUs differ in the last bits of a power, and all ranks must cut alike."""
    return powers.astype(np.float32).astype(np.float64)


def _mean(values: Float64) -> float:
    """In one order of additions, the same on every CPU."""
    return float(values.cumsum()[-1]) / len(values)

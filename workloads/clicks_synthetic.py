"""A synthetic stream in the shape of Criteo's: 13 dense and 26 categorical features, and clicks that can be learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsbench.samples import Int64, Jagged
from fsbench_workloads import keyed
from fsbench_workloads.clicks import Examples, Source
from fsbench_workloads.splits import sha256_of

DENSE, CATEGORICAL = 13, 26
FEWEST_ROWS = 4
ZIPF = 1.1
BIAS = -1.6
DENSE_WEIGHT, VALUE_WEIGHT, PAIR_WEIGHT = 0.8, 1.2, 0.6
"""Standard deviations of what the dense features, the categorical ones and pairs of these add to the logit."""
_HELD_OUT_FROM = 2**62
"""No stream gets so far."""
_HASHED_SAMPLES = 64


class Synthetic(Source):
    """A stream without end: the example at a place depends on the seed and on the place only.

    Dense features are uniform, with mean 0 and variance 1. A categorical feature has one value of a table of its own;
    the tables have `FEWEST_ROWS` to `rows` rows, evenly spaced in their logarithm, and a value's popularity falls with
    its number as `number ** -ZIPF`. A click is drawn with the probability of a planted logistic model:

        logit = BIAS + DENSE_WEIGHT * <w, x> / sqrt(13)                          x: the dense features
                     + VALUE_WEIGHT * sum over features f of e_f[v_f] / sqrt(26)     v: their values
                     + PAIR_WEIGHT * sum over pairs (0, 1), (2, 3).. of p_f[v_f] p_g[v_g] / sqrt(13)

    Entries of w, e and p are uniform, with mean 0 and variance 1, and hashes of their place.
    """

    dense = DENSE
    train = None

    def __init__(self, rows: int, held_out: int, seed: int) -> None:
        self.rows = tuple(np.geomspace(FEWEST_ROWS, rows, CATEGORICAL).round().astype(int).tolist())
        self.held_out = range(_HELD_OUT_FROM, _HELD_OUT_FROM + held_out)
        self.protocol = f"{held_out:,} held-out examples of the same synthetic stream"
        self._seed = seed
        self._weights = _unit_uniform(seed, "w", np.arange(DENSE))

    def read(self, places: Int64) -> Examples:
        dense, values = self._features(places)
        clicked = keyed.uniform(self._seed, "click", places) < self._probability(dense, values)
        return Examples(dense.astype(np.float32), Jagged(values.ravel(), np.ones(values.size, np.int64)), clicked)

    def probability(self, places: Int64) -> NDArray[np.float64]:
        """Of a click, float64[n], by the planted model: nobody can predict better."""
        return self._probability(*self._features(places))

    def _probability(self, dense: NDArray[np.float64], values: Int64) -> NDArray[np.float64]:
        features = np.arange(CATEGORICAL)
        effects = _unit_uniform(self._seed, "e", features, values).sum(axis=1) / np.sqrt(CATEGORICAL)
        factors = _unit_uniform(self._seed, "p", features, values)
        pairs = (factors[:, ::2] * factors[:, 1::2]).sum(axis=1) / np.sqrt(CATEGORICAL / 2)
        linear = dense @ self._weights / np.sqrt(DENSE)
        return 1 / (1 + np.exp(-(BIAS + DENSE_WEIGHT * linear + VALUE_WEIGHT * effects + PAIR_WEIGHT * pairs)))

    def fingerprint(self) -> Mapping[str, Any]:
        first = self.read(np.arange(_HASHED_SAMPLES))
        return {
            "data": f"synthetic, seed {self._seed}",
            "data_sha256": sha256_of(first.bags.values, first.clicked),  # of the first examples of the stream
            "rows": sum(self.rows),
            "held_out": len(self.held_out),
        }

    def _features(self, places: Int64) -> tuple[NDArray[np.float64], Int64]:
        """float64[n, DENSE] and int64[n, CATEGORICAL]."""
        of, rows = places[:, None], np.array(self.rows)
        dense = _unit_uniform(self._seed, "x", of, np.arange(DENSE))
        return dense, zipf(keyed.uniform(self._seed, "v", of, np.arange(CATEGORICAL)), rows)


def zipf(uniform: NDArray[np.float64], rows: NDArray) -> Int64:
    """Values 0 to rows - 1 from numbers in [0, 1), which broadcast: int64.

    The integer part of a bounded Pareto variable on [1, rows + 1), whose density falls as x ** -ZIPF: it needs no table
    of the distribution, however many rows there are.
    """
    power = 1 - ZIPF
    x = (1 + uniform * ((rows + 1.0) ** power - 1)) ** (1 / power)
    return np.clip(x.astype(np.int64) - 1, 0, rows - 1)


def _unit_uniform(seed: int, stream: str, *words: Any) -> NDArray[np.float64]:
    """Uniform numbers of mean 0 and variance 1."""
    return np.sqrt(12) * (keyed.uniform(seed, stream, *words) - 0.5)

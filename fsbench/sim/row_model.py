"""Rows of global batches that were not counted, from those that were: how many, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsbench.sim.contract import TableRows
from fsbench.sim.topology import Int64

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Share:
    """A mean over the rank-batches that were counted, and its standard error; 0 and 0 where there was none."""

    mean: float
    error: float

    @classmethod
    def of(cls, parts: Sequence[Int64], wholes: Sequence[Int64]) -> Share:
        """Of shares by rank, of each counted batch, [ranks] each."""
        whole = np.concatenate([*wholes, np.zeros(0)])
        shares = np.concatenate([*parts, np.zeros(0)])[whole > 0] / whole[whole > 0]
        if not len(shares):
            return cls(0.0, 0.0)
        return cls(float(shares.mean()), float(shares.std(ddof=1) / np.sqrt(len(shares))) if len(shares) > 1 else 0.0)


@dataclass(frozen=True)
class RowModel:
    """One table's rows in batches of any size. `lookups`: of a sample, and of a token. `distinct`: share of a rank's
    lookups that are rows of their own; `shared`, `needed`: shares of those that the batch before and after has too."""

    lookups: Float64
    distinct: Share
    shared: Share
    needed: Share

    @classmethod
    def fit(cls, counted: Sequence[TableRows], samples: Sequence[Int64], tokens: Sequence[Int64]) -> RowModel:
        """From the first batches of a stream that goes on behind them. [ranks] each."""
        wanted = [rows.wanted.sum(axis=1) for rows in counted]
        described = np.stack([np.concatenate(samples), np.concatenate(tokens)], axis=1).astype(np.float64)
        return cls(
            lookups=np.linalg.lstsq(described, np.concatenate([rows.ids for rows in counted]), rcond=None)[0],
            distinct=Share.of(wanted, [rows.ids for rows in counted]),
            # The first batch has none before it, and all its rows count as shared.
            shared=Share.of([rows.shared.sum(axis=1) for rows in counted[1:]], wanted[1:]),
            needed=Share.of([rows.needed.sum(axis=1) for rows in counted], wanted),
        )

    def rows(self, samples: Int64, tokens: Int64, *, is_last: bool) -> TableRows:
        """Of a batch that is not the first, [ranks] each. Every owner is asked for as many rows as any other."""
        ids = np.rint(np.stack([samples, tokens], axis=1) @ self.lookups)
        wanted = ids * self.distinct.mean
        needed = wanted * (0.0 if is_last else self.needed.mean)
        return TableRows(
            ids.astype(np.int64),
            *(_evenly(np.rint(count).astype(np.int64)) for count in (wanted, wanted * self.shared.mean, needed)),
            touched=0,
            again=0,
        )

    def evidence(self) -> dict[str, Any]:
        """Means and standard errors."""
        return {name: list(vars(getattr(self, name)).values()) for name in ("distinct", "shared", "needed")}


def _evenly(counts: Int64) -> Int64:
    """int64[ranks, ranks]: each rank's count dealt to all owners; what does not divide goes to others for each rank."""
    ranks = len(counts)
    place = (np.arange(ranks) + np.arange(ranks)[:, None]) % ranks
    return counts[:, None] // ranks + (place < (counts % ranks)[:, None])

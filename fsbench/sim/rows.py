"""Which rows of a table global batches touch, and which of them batches in a row have in common: counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fsbench.sim.contract import TableRows
from fsbench.sim.topology import Int64
from fsbench.spreading import multiplier


@dataclass(frozen=True)
class _Touched:
    """A global batch. By rank: `ids`, how many; `rows`, the distinct ones among them, and `owners` of those."""

    ids: Int64
    rows: list[Int64]
    owners: list[Int64]
    shared: Int64 | None


class RowCounter:
    """Counts one table's rows, batch after batch. `rows`: of the table, dealt to `ranks` owners."""

    def __init__(self, rows: int, ranks: int) -> None:
        self._rows, self._ranks = rows, ranks
        self._last_step = np.full(rows, -1, np.int64)
        self._step = 0
        self._before: _Touched | None = None

    def add(self, ids: Sequence[Int64] | None) -> TableRows | None:
        """The counts of the batch before, which are known when the one after it is; None at first.

        `ids`: int64[m] by rank, of the next batch; None after the last one.
        """
        touched = self._touch(ids) if ids is not None else None
        done, self._before = self._before, touched
        if done is None:
            return None
        everything = self._by_owner(done, [np.ones(len(rows), bool) for rows in done.rows])
        nothing = np.zeros_like(everything)
        needed = nothing if touched is None else self._held_at(done, self._step - 1)
        distinct = np.unique(np.concatenate(done.rows))
        again = 0 if touched is None else int((self._last_step[distinct] == self._step - 1).sum())
        shared = everything if done.shared is None else done.shared
        return TableRows(done.ids, everything, shared, needed, len(distinct), again)

    def _touch(self, ids: Sequence[Int64]) -> _Touched:
        rows = [np.unique(of_rank) for of_rank in ids]
        owners = [of_rank * multiplier(self._rows) % self._rows % self._ranks for of_rank in rows]
        touched = _Touched(np.array([len(of_rank) for of_rank in ids]), rows, owners, None)
        shared = self._held_at(touched, self._step - 1) if self._step else None
        for of_rank in rows:
            self._last_step[of_rank] = self._step
        self._step += 1
        return _Touched(touched.ids, rows, owners, shared)

    def _held_at(self, touched: _Touched, step: int) -> Int64:
        """int64[ranks, ranks]: rows that the batch of a step has, the last one to have had them."""
        return self._by_owner(touched, [self._last_step[rows] == step for rows in touched.rows])

    def _by_owner(self, touched: _Touched, chosen: Sequence[np.ndarray]) -> Int64:
        owners = [of_rank[kept] for of_rank, kept in zip(touched.owners, chosen, strict=True)]
        return np.stack([np.bincount(of_rank, minlength=self._ranks) for of_rank in owners])

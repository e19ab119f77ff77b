"""How many bytes a sharding moves, beside what an answer for balance alone would move."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsbench.axes import BatchMeta

Int64 = NDArray[np.int64]

COMPARED_EVERY = 16
"""Of so many batches one is compared: knowing what another answer would move costs as much as that answer."""


class MovedBytes:
    """Counts over all batches, and over those that were compared. `balance_only`: the answer to compare with."""

    def __init__(self, balance_only: Callable[[BatchMeta], Int64]) -> None:
        self._balance_only = balance_only
        self._all, self._ours, self._theirs = [], [], []

    def count(self, batch: BatchMeta, assignment: Int64) -> None:
        moved = moved_bytes(batch, assignment)
        if len(self._all) % COMPARED_EVERY == 0:
            self._ours.append(moved)
            self._theirs.append(moved_bytes(batch, self._balance_only(batch)))
        self._all.append(moved)

    def evidence(self) -> Mapping[str, Any]:
        return {
            "batches": len(self._all),
            "moved_bytes": sum(self._all),
            "compared": {
                "batches": len(self._ours),
                "moved_bytes": sum(self._ours),
                "balance_only_moved_bytes": sum(self._theirs),
            },
        }


def moved_bytes(batch: BatchMeta, assignment: Int64) -> int:
    """Bytes of the samples that change rank."""
    return int(batch.bytes[assignment != batch.source].sum())

"""Samples on the host: what a loader yields, the balancer weighs and the shuffle moves. numpy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Jagged:
    """Rows of different lengths, end to end, nothing padded.

    `values`: any dtype, [sum(lengths)]; `lengths`: int64[n].
    """

    values: NDArray
    lengths: Int64

    @property
    def offsets(self) -> Int64:
        """int64[n + 1]: row i is `values[offsets[i]:offsets[i + 1]]`."""
        return np.concatenate(([0], np.cumsum(self.lengths))).astype(np.int64)

    def take(self, rows: Int64) -> Jagged:
        """The given rows, in the given order."""
        lengths = self.lengths[rows]
        return Jagged(self.values[ranges(self.offsets[rows], lengths)], lengths)

    @staticmethod
    def concatenate(parts: Sequence[Jagged]) -> Jagged:
        return Jagged(np.concatenate([p.values for p in parts]), np.concatenate([p.lengths for p in parts]))


def ranges(starts: Int64, lengths: Int64) -> Int64:
    """Concatenation of `arange(start, start + length)` over all pairs, without a loop: int64[sum(lengths)]."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - lengths), lengths)


@dataclass(frozen=True)
class Samples:
    """`n` training sequences.

    `index`: int64[n], each sample's place in the training stream. It keys everything random about the sample
        (negatives, dropout), so that a sample is the same wherever it is trained.
    `targets`: int64[n], label-carrying positions of each sample.
    `columns`: jagged columns of n rows each, by name. The first one is the history: its lengths are the tokens.
    """

    index: Int64
    targets: Int64
    columns: Mapping[str, Jagged]

    def __len__(self) -> int:
        return len(self.index)

    @property
    def tokens(self) -> Int64:
        """int64[n]: length of each sample's history."""
        return next(iter(self.columns.values())).lengths

    @property
    def bytes(self) -> Int64:
        """int64[n]: what moving each sample costs on the wire, without its metadata."""
        sizes = [column.lengths * column.values.itemsize for column in self.columns.values()]
        return np.sum(sizes, axis=0, dtype=np.int64)

    def take(self, rows: Int64) -> Samples:
        """The given samples, in the given order."""
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        return Samples(self.index[rows], self.targets[rows], columns)

    @staticmethod
    def concatenate(parts: Sequence[Samples]) -> Samples:
        names = parts[0].columns
        return Samples(
            np.concatenate([p.index for p in parts]),
            np.concatenate([p.targets for p in parts]),
            {name: Jagged.concatenate([p.columns[name] for p in parts]) for name in names},
        )

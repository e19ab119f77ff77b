"""What ranks tell each other about a coming batch, in one all-gather.

A table of int64 from each rank: a header row, a row a sample, then zeros. Numbers that are not whole travel as the bits
of a float64.

    header:  samples | stray ID, three fields | seconds | features of the batch that took them ...
    sample:  index | targets | cost | length of each column ...
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fsbench.samples import Samples

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
STRAY_FIELDS = 3
_SECONDS, _SAMPLE = 1 + STRAY_FIELDS, 3


@dataclass(frozen=True)
class Trained:
    """A rank-batch that was trained: `seconds` of compute, `features` float64[k]. Before the first step all are 0."""

    seconds: float
    features: Float64


@dataclass(frozen=True)
class GlobalMetadata:
    """A global batch, in global order; the same on every rank.

    `index`, `targets`: int64[n]; `costs`: float64[n]; `lengths`: int64[n, columns]; `source`: int32[n].
    `strays`: int64[ranks, STRAY_FIELDS], what each rank found (`fsbench.train.stray_ids`).
    `seconds`: float64[ranks], `features`: float64[ranks, k], of the batch that each rank trained last.
    """

    index: Int64
    targets: Int64
    costs: Float64
    lengths: Int64
    source: NDArray[np.int32]
    strays: Int64
    seconds: Float64
    features: Float64


def pack(samples: Samples, costs: Float64, stray: Int64, trained: Trained, capacity: int) -> Int64:
    """int64[capacity + 1, width]; the width depends on the number of columns and of features alone."""
    columns, features = list(samples.columns.values()), trained.features
    table = np.zeros((capacity + 1, _width(len(columns), len(features))), np.int64)
    table[0, 0] = len(samples)
    table[0, 1:_SECONDS] = stray
    table[0, _SECONDS : _SECONDS + 1 + len(features)] = np.append(trained.seconds, features).view(np.int64)
    rows = table[1 : len(samples) + 1]
    rows[:, 0], rows[:, 1] = samples.index, samples.targets
    rows[:, 2] = costs.astype(np.float64).view(np.int64)
    for place, column in enumerate(columns, start=_SAMPLE):
        rows[:, place] = column.lengths
    return table


def metadata_bytes(capacity: int, columns: int, features: int) -> int:
    """What each rank tells in all: see `pack`."""
    return (capacity + 1) * _width(columns, features) * np.dtype(np.int64).itemsize


def _width(columns: int, features: int) -> int:
    return max(_SAMPLE + columns, _SECONDS + 1 + features)


def unpack(gathered: Int64, columns: int, features: int) -> GlobalMetadata:
    """From int64[ranks, capacity + 1, width]: the tables of all ranks."""
    held = gathered[:, 0, 0]
    rows = gathered[:, 1:][np.arange(gathered.shape[1] - 1) < held[:, None]]
    told = _floats(gathered[:, 0, _SECONDS : _SECONDS + 1 + features])
    return GlobalMetadata(
        index=rows[:, 0],
        targets=rows[:, 1],
        costs=_floats(rows[:, 2]),
        lengths=rows[:, _SAMPLE : _SAMPLE + columns],
        source=np.repeat(np.arange(len(held), dtype=np.int32), held),
        strays=gathered[:, 0, 1:_SECONDS],
        seconds=told[:, 0],
        features=told[:, 1:],
    )


def _floats(bits: Int64) -> Float64:
    return np.ascontiguousarray(bits).view(np.float64)

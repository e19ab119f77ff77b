"""IDs that no row of their table has: found on the rank that loads them, an error on all before anything is exchanged.

Where ranks load apart, it is an error on that rank, which ends the run.

A strategy would take a wrong row for one, or die in the middle of an exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fsbench.axes import TableSpec
from fsbench.errors import FsbenchError
from fsbench.samples import Samples
from fsbench.train.metadata import STRAY_FIELDS
from fsbench.workload import Batch

Int64 = NDArray[np.int64]
_UNKNOWN = -1


def find_stray(samples: Samples, batch: Batch, tables: Sequence[TableSpec], build: Callable[[Samples], Batch]) -> Int64:
    """The first stray ID of `batch`, made from `samples`, for the metadata: int64[STRAY_FIELDS], the place of
    the table among `tables`, the ID, the index of the sample; all -1 if there is none."""
    for place, table in enumerate(tables):
        if len(_outside(ids := batch.ids[table.name], table)):
            return np.array(_blame(place, table, samples, ids, build), np.int64)
    return np.full(STRAY_FIELDS, _UNKNOWN, np.int64)


def _outside(ids: torch.Tensor, table: TableSpec) -> torch.Tensor:
    if not len(ids):
        return ids
    low, high = torch.aminmax(ids)
    return ids[(ids < 0) | (ids >= table.rows)] if low < 0 or high >= table.rows else ids[:0]


def _blame(
    place: int, table: TableSpec, samples: Samples, ids: torch.Tensor, build: Callable[[Samples], Batch]
) -> tuple[int, int, int]:
    for row in range(len(samples)):
        strays = _outside(build(samples.take(np.array([row]))).ids[table.name], table)
        if len(strays):
            return place, int(strays[0]), int(samples.index[row])
    return place, int(_outside(ids, table)[0]), _UNKNOWN


def refuse_strays(step: int, found: Iterable[tuple[int, Sequence[int]]], tables: Sequence[TableSpec]) -> None:
    """`found`: ranks, and the `STRAY_FIELDS` numbers that each found.

    Raises:
        FsbenchError: the first stray ID: its table, itself and its sample.
    """
    for rank, (place, stray, sample) in found:
        if place != _UNKNOWN:
            table = tables[place]
            whose = f"sample {sample}" if sample != _UNKNOWN else "a sample"
            raise FsbenchError(
                f"step {step}: table {table.name} has no row {stray}, which {whose}, loaded by rank {rank}, asks for; "
                f"expected 0 to {table.rows - 1}"
            )

"""Which bytes of a tensor travel in which round, and where in a buffer they lie meanwhile. numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Chunk:
    """A piece of each rank's block, packed by rank in a buffer.

    `splits`: its bytes by rank, `bytes` their sum. `runs`: what is copied, as (place in the tensor, place in the
    buffer, bytes); pieces that lie end to end in the tensor are one.
    """

    splits: list[int]
    bytes: int
    runs: list[tuple[int, int, int]]


def cut(lengths: Int64, starts: Int64, most: int, largest: int) -> list[Chunk]:
    """Blocks of `lengths` bytes, one a rank, from `starts` on in a tensor: each chunk has the next `most` bytes of all.

    `largest`: no block of any rank is longer. It gives the number of chunks, the same everywhere, and at least one.
    """
    return [_chunk(np.clip(lengths - first, 0, most), starts + first) for first in range(0, max(1, largest), most)]


def _chunk(sizes: Int64, places: Int64) -> Chunk:
    held = sizes > 0
    moved, places = sizes[held], places[held]
    ends = np.cumsum(moved)
    heads = np.flatnonzero(np.append(True, places[1:] != places[:-1] + moved[:-1])[: len(moved)])
    lengths = np.diff(ends[heads] - moved[heads], append=ends[-1:])
    runs = zip(places[heads].tolist(), (ends - moved)[heads].tolist(), lengths.tolist(), strict=True)
    return Chunk(sizes.tolist(), int(moved.sum()), list(runs))

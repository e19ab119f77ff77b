"""Which samples to calibrate on: a uniform part of the stream's beginning, dealt to rank-batches."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fsbench.costs.reservoir import Reservoir
from fsbench.samples import Samples
from fsbench.workload import Workload

READ_A_SAMPLE = 10
"""How many samples are read for each that is kept. More of a stream says more about it, and costs more to read."""
HELD_OUT = 4
"""One rank-batch in so many is held out of the fit."""


@dataclass(frozen=True)
class Drawn:
    """`samples`: what was kept, in no order; `read`: how many there were to choose from."""

    samples: Samples
    read: int


@dataclass(frozen=True)
class RankBatch:
    """Places among the drawn samples, int64[n]. Held-out ones have as many samples as a rank loads in a step."""

    places: NDArray[np.int64]
    held_out: bool


def draw(workload: Workload, size: int, seconds: float, seed: int) -> Drawn:
    """`size` samples, uniform over what is read: all of a small data set, else `READ_A_SAMPLE` times as many as are
    kept, or as many as can be read in `seconds`. At least one step of a rank is read."""
    reservoir = Reservoir(size, seed)
    kept: dict[int, Samples] = {}
    deadline = time.monotonic() + seconds
    for step in itertools.count():
        loaded = workload.load(step, 0, 1)
        for row in range(len(loaded)):
            if (place := reservoir.place()) is not None:
                kept[place] = loaded.take(np.array([row]))
        beyond = reservoir.seen + len(loaded) > (workload.samples_available or np.inf)
        if beyond or reservoir.seen >= READ_A_SAMPLE * size or time.monotonic() > deadline or not len(loaded):
            return Drawn(Samples.concatenate(list(kept.values())), reservoir.seen)
    raise AssertionError("unreachable")


def deal(samples: int, per_rank: int, seed: int) -> list[RankBatch]:
    """Every sample to one rank-batch, at random; what is left over at the end of the last one is dropped.

    Rank-batches to fit have 1 to `2 * per_rank` samples: only where counts differ can the time of a batch be told from
    that of its samples, and balancers may give counts of any size.
    """
    random = np.random.default_rng(seed)
    order = random.permutation(samples)
    batches: list[RankBatch] = []
    first = 0
    while True:
        held_out = len(batches) % HELD_OUT == HELD_OUT - 1
        count = per_rank if held_out else int(random.integers(1, 2 * per_rank + 1))
        if first + count > samples:
            return batches
        batches.append(RankBatch(np.sort(order[first : first + count]), held_out))
        first += count

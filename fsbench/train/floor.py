"""The noise floor: every rank trains a copy of the same samples, so that whoever waits, waits for the machine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fsbench.axes import BatchMeta, Sharding
from fsbench.samples import Samples
from fsbench.workload import Workload


class SameForAll:
    """The loader's side of a workload, of which every rank loads rank 0's share.

    It reads what the first `trained` steps did, again: a stream may have come to its end.
    """

    def __init__(self, workload: Workload, trained: int) -> None:
        self.samples_per_rank = workload.samples_per_rank
        self.costs = workload.costs
        self.cost_features = workload.cost_features
        self.build_batch = workload.build_batch
        self._workload = workload
        self._trained = trained

    def load(self, step: int, rank: int, ranks: int) -> Samples:
        return self._workload.load(step % self._trained, 0, ranks)


class Stay(Sharding):
    """Leaves every sample where it was loaded."""

    moves = False
    lookahead = 1

    def assign(self, batch: BatchMeta) -> NDArray[np.int64]:
        return batch.source.astype(np.int64)

"""Arrival order."""

import numpy as np

from fsbench.axes import BatchMeta
from fsbench_strategies.sharding.naive import Naive


def test_samples_stay_where_they_were_loaded():
    source = np.array([0, 0, 1, 2, 2, 2], np.int32)
    ones = np.ones(6, np.int64)
    batch = BatchMeta(np.arange(6.0), ones, ones, source, 3, np.ones(3), None, step=0)
    assignment = Naive().assign(batch)
    assert assignment.tolist() == source.tolist()
    assert assignment.dtype == np.int64
    assert not Naive.moves

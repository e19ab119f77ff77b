"""What ranks tell each other about a batch comes out as it went in."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fsbench.samples import Jagged, Samples
from fsbench.train.metadata import STRAY_FIELDS, Trained, pack, unpack

CAPACITY = 4
numbers = st.floats(allow_nan=False)


@st.composite
def told(draw, features, columns):
    """A rank's samples, their costs, and what it trained last."""
    n = draw(st.integers(0, CAPACITY))
    small = st.lists(st.integers(0, 3), min_size=n, max_size=n).map(lambda values: np.array(values, np.int64))
    lengths = [draw(small) for _ in range(columns)]
    samples = Samples(
        draw(small), draw(small), {f"c{i}": Jagged(np.zeros(sum(row), np.int64), row) for i, row in enumerate(lengths)}
    )
    costs, seconds, *described = (
        np.array(draw(st.lists(numbers, min_size=size, max_size=size))) for size in (n, 1, features)
    )
    stray = np.array([draw(st.integers(-1, 2**62)) for _ in range(STRAY_FIELDS)])
    return samples, costs, stray, Trained(float(seconds[0]), *described)


@given(st.data(), st.integers(1, 3), st.integers(0, 6), st.integers(1, 3))
def test_every_rank_reads_what_all_of_them_packed_in_global_order(data, ranks, features, columns):
    parts = [data.draw(told(features, columns)) for _ in range(ranks)]
    read = unpack(np.stack([pack(*part, CAPACITY) for part in parts]), columns, features)
    whole = Samples.concatenate([samples for samples, *_ in parts])
    assert read.index.tolist() == whole.index.tolist()
    assert read.targets.tolist() == whole.targets.tolist()
    assert read.costs.tolist() == [cost for _, costs, _, _ in parts for cost in costs]
    assert read.lengths.T.tolist() == [column.lengths.tolist() for column in whole.columns.values()]
    assert read.source.tolist() == [rank for rank, (samples, *_) in enumerate(parts) for _ in range(len(samples))]
    assert read.strays.tolist() == [stray.tolist() for _, _, stray, _ in parts]
    assert read.seconds.tolist() == [trained.seconds for *_, trained in parts]
    assert read.features.tolist() == [trained.features.tolist() for *_, trained in parts]

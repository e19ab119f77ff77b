"""Global batches to balance, and what an assignment makes of them: shared by the tests of the shardings."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from fsbench.axes import BatchMeta
from fsbench.options import Spec
from fsbench.plugins import create


def sharding(name):
    return create("sharding", Spec.parse(name))


def arrival(n, ranks):
    """Samples in global order, spread over the ranks as evenly as can be."""
    return np.repeat(np.arange(ranks), [n // ranks + (rank < n % ranks) for rank in range(ranks)])


def batch_of(costs, ranks, *, tokens=None, source=None, speeds=None, token_limit=None):
    """A global batch that nobody can write to. `source` need not be in order: it is sorted."""
    n = len(costs)
    tokens = np.ones(n, np.int64) if tokens is None else np.array(tokens, np.int64)
    source = arrival(n, ranks) if source is None else np.sort(source)
    arrays = {
        "costs": np.array(costs, np.float64),
        "tokens": tokens,
        "bytes": tokens * 8,
        "source": source.astype(np.int32),
        "speeds": np.ones(ranks) if speeds is None else np.array(speeds, np.float64),
    }
    for array in arrays.values():
        array.flags.writeable = False
    return BatchMeta(**arrays, ranks=ranks, token_limit=token_limit, step=7)


def of_lengths(lengths, ranks, **more):
    """Costs of a transformer layer of width 8."""
    lengths = np.array(lengths, np.float64)
    return batch_of(24 * lengths * 64 + 4 * lengths**2 * 8, ranks, tokens=lengths, **more)


costs = st.one_of(st.sampled_from([0.0, 1.0, 1.0, 2.0]), st.floats(0, 1e12), st.floats(0, 10).map(np.exp))


FEW = st.integers(0, 40)


@st.composite
def batches(draw, samples=FEW):
    """Any: also where cost and length have nothing to do with each other, and some ranks read nothing."""
    ranks, n = draw(st.integers(1, 6)), draw(samples)
    source = st.none() | st.lists(st.integers(0, ranks - 1), min_size=n, max_size=n).map(np.array)
    return batch_of(
        draw(st.lists(costs, min_size=n, max_size=n)),
        ranks,
        tokens=draw(st.lists(st.integers(0, 5000), min_size=n, max_size=n)),
        source=draw(source),
        speeds=draw(st.none() | st.lists(st.floats(0.25, 4), min_size=ranks, max_size=ranks)),
    )


def counts(assignment, batch):
    return np.bincount(assignment, minlength=batch.ranks)


def seconds(assignment, batch):
    return np.bincount(assignment, batch.costs, minlength=batch.ranks) / batch.speeds


def tokens(assignment, batch):
    return np.bincount(assignment, batch.tokens, minlength=batch.ranks)

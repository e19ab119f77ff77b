"""Balancing time and balance, beside a heap: `pytest tests/bench/bench_sharding.py --benchmark-only`.

`max_over_mean` in the report's extra info is the cost of the fullest rank over the mean.
"""

import heapq

import numpy as np
import pytest

from fsbench.axes import BatchMeta
from fsbench_strategies.sharding.cost_aware import CostAware

SAMPLES_PER_RANK = 128


def batch_of(ranks, seed=0):
    """Lognormal lengths with a heavy tail, costed as a transformer layer of width 256."""
    n = ranks * SAMPLES_PER_RANK
    tokens = np.rint(np.random.default_rng(seed).lognormal(6, 1.2, n)).clip(1, 21_000).astype(np.int64)
    costs = 24.0 * tokens * 256**2 + 4.0 * tokens.astype(np.float64) ** 2 * 256
    source = np.repeat(np.arange(ranks, dtype=np.int32), SAMPLES_PER_RANK)
    return BatchMeta(costs, tokens, tokens * 8, source, ranks, np.ones(ranks), None, step=0)


def capped_heap_lpt(batch):
    """Largest first, each to the least loaded rank with places left: one sample at a time."""
    costs, assignment = batch.costs.tolist(), np.empty(len(batch.costs), np.int64)
    heap = [(0.0, rank, SAMPLES_PER_RANK) for rank in range(batch.ranks)]
    for sample in np.argsort(-batch.costs, kind="stable").tolist():
        load, rank, free = heapq.heappop(heap)
        assignment[sample] = rank
        if free > 1:
            heapq.heappush(heap, (load + costs[sample], rank, free - 1))
    return assignment


@pytest.mark.parametrize("ranks", [8, 64, 256])
@pytest.mark.parametrize("method", [CostAware().assign, capped_heap_lpt], ids=["cost-aware", "heap-lpt"])
def test_assign(benchmark, method, ranks):
    batch = batch_of(ranks)
    assignment = benchmark(method, batch)
    loads = np.bincount(assignment, batch.costs)
    benchmark.extra_info["max_over_mean"] = round(float(loads.max() / loads.mean()), 6)

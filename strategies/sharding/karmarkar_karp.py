"""Karmarkar-Karp at equal counts: the largest differencing method for R ranks.

The samples, by falling cost, are cut into blocks of R. Each block is a *partial split*: R parts of one sample each. The
two partial splits with the largest spread (costliest part less cheapest) are merged, the costliest part of one with
the cheapest of the other, and so on, so that they cancel; the last one left is the answer. Every part has one sample
of each block, so counts are equal; for the same reason nothing makes up for one very long history.

N. Karmarkar and R. Karp, "The differencing method of set partitioning" (1982); for equal counts W. Michiels et al.,
"Performance ratios for the Karmarkar-Karp differencing method" (2003).

Only the sums of the parts are kept while merging, one vector a partial split: which samples a part has is read off the
recorded orders at the end. A merge is a sort of R sums: O(n log R) in all, of which only the n / R merges are a loop.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fsbench.axes import BatchMeta, Sharding
from fsbench_strategies.sharding.checks import check_batch, within_token_limit

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


class KarmarkarKarp(Sharding):
    """Differencing at equal counts, as other suites balance: merges blocks of sorted samples so that they cancel."""

    lookahead: ClassVar[int] = 1

    def assign(self, batch: BatchMeta) -> Int64:
        """The rank of each sample, int64[n]. Equal costs go by global index; speeds are not looked at.

        Raises what `checks` refuses.
        """
        check_batch(batch)
        n, ranks = len(batch.costs), batch.ranks
        falling = np.argsort(-batch.costs, kind="stable")
        blocks = np.zeros((-(-n // ranks), ranks))
        blocks.ravel()[:n] = batch.costs[falling]
        assignment = np.empty(n, np.int64)
        assignment[falling] = difference(blocks).ravel()[:n]
        return within_token_limit(batch, assignment)


@dataclass(frozen=True)
class Merge:
    """Two partial splits became one: `costly` had the larger spread. `order` sorts the R new parts by falling cost;
    before, part p was part p of `costly` and part R-1-p of `other`."""

    costly: int
    other: int
    order: Int64


def difference(blocks: Float64) -> Int64:
    """The part of each sample, int64[blocks, R], for costs [blocks, R] in falling order; a missing sample costs 0."""
    merges = _merge_all(blocks)
    parts: dict[int, Int64] = {len(blocks) + len(merges) - 1: np.arange(blocks.shape[1])}
    for number in reversed(range(len(merges))):
        merge, before = merges[number], np.empty(blocks.shape[1], np.int64)
        before[merge.order] = parts.pop(len(blocks) + number)
        parts[merge.costly], parts[merge.other] = before, before[::-1]
    return np.stack([parts[block] for block in range(len(blocks))]) if len(blocks) else np.empty(blocks.shape, np.int64)


def _merge_all(blocks: Float64) -> list[Merge]:
    """All merges, in order: the i-th makes partial split `len(blocks) + i` out of two earlier ones."""
    sums = dict(enumerate(blocks))
    heap = [(block[-1] - block[0], number) for number, block in sums.items()]
    heapq.heapify(heap)
    merges: list[Merge] = []
    while len(heap) > 1:
        costly, other = heapq.heappop(heap)[1], heapq.heappop(heap)[1]
        merged = sums.pop(costly) + sums.pop(other)[::-1]
        order = np.argsort(-merged, kind="stable")
        number = len(blocks) + len(merges)
        merges.append(Merge(costly, other, order))
        sums[number] = merged[order]
        heapq.heappush(heap, (sums[number][-1] - sums[number][0], number))
    return merges

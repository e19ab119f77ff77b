"""Plain partitioners of samples into ranks, one sample at a time: what tests and timings hold the built-in ones
against.

The algorithms that public suites use, written down as their papers have them.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import combinations, product

Costs = Sequence[float]


def heap_lpt(costs: Costs, ranks: int, places: int | None = None) -> list[int]:
    """Largest first, each to the least loaded rank that has one of its `places` left. The rank of each sample."""
    assignment = [0] * len(costs)
    heap = [(0.0, 0, rank) for rank in range(ranks)]
    for sample in sorted(range(len(costs)), key=lambda sample: -costs[sample]):
        load, count, rank = heapq.heappop(heap)
        assignment[sample] = rank
        if count + 1 != places:
            heapq.heappush(heap, (load + costs[sample], count + 1, rank))
    return assignment


def greedy(costs: Costs, ranks: int, places: int | None = None) -> list[int]:
    """In order of arrival, each to the least loaded rank that has one of its `places` left. The rank of each sample."""
    assignment, counts, loads = [], [0] * ranks, [0.0] * ranks
    for cost in costs:
        rank = min((rank for rank in range(ranks) if counts[rank] != places), key=loads.__getitem__)
        assignment.append(rank)
        counts[rank] += 1
        loads[rank] += cost
    return assignment


def karmarkar_karp(costs: Costs, ranks: int, *, equal: bool) -> list[int]:
    """Largest differencing, with the samples of every part kept in lists. The rank of each sample.

    `equal`: begins with blocks of `ranks` samples, by falling cost, one in each part; otherwise with single samples.
    """
    order = sorted(range(len(costs)), key=lambda sample: -costs[sample])
    size = ranks if equal else 1
    heap = [_split(costs, order[first : first + size], ranks, first) for first in range(0, len(order), size)]
    heapq.heapify(heap)
    while len(heap) > 1:
        costly, other = heapq.heappop(heap), heapq.heappop(heap)
        parts = [
            (load + more, samples + others)
            for (load, samples), (more, others) in zip(costly[2], reversed(other[2]), strict=True)
        ]
        heapq.heappush(heap, _spread(parts, costly[1]))
    assignment = [0] * len(costs)
    for rank, (_, samples) in enumerate(heap[0][2] if heap else []):
        for sample in samples:
            assignment[sample] = rank
    return assignment


Split = tuple[float, int, list[tuple[float, list[int]]]]
"""Falling spread, a number that tells equal ones apart, and the parts by falling load: load and samples."""


def _split(costs: Costs, samples: Sequence[int], ranks: int, number: int) -> Split:
    parts: list[tuple[float, list[int]]] = [(costs[sample], [sample]) for sample in samples]
    return _spread(parts + [(0.0, [])] * (ranks - len(parts)), number)


def _spread(parts: list[tuple[float, list[int]]], number: int) -> Split:
    parts = sorted(parts, key=lambda part: -part[0])
    return parts[-1][0] - parts[0][0], number, parts


def best_slowest(costs: Costs, speeds: Sequence[float], places: Sequence[int]) -> float:
    """The least time that the slowest rank can take, with so many samples a rank. Tries every split."""

    def best(samples: frozenset[int], rank: int) -> float:
        if rank == len(speeds):
            return 0.0
        return min(
            max(sum(costs[i] for i in mine) / speeds[rank], best(samples - set(mine), rank + 1))
            for mine in combinations(sorted(samples), places[rank])
        )

    return best(frozenset(range(len(costs))), 0)


def best_slowest_of_any_counts(costs: Costs, speeds: Sequence[float]) -> float:
    """The same with any number of samples a rank."""
    return min(
        max(
            sum(costs[i] for i, owner in enumerate(owners) if owner == rank) / speed
            for rank, speed in enumerate(speeds)
        )
        for owners in product(range(len(speeds)), repeat=len(costs))
    )

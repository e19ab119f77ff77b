"""Sets of instants as sorted, disjoint, non-touching half-open intervals: int64[k, 2].

Flattened, such a set is a strictly increasing list of instants at which a timeline goes in and out of the
set; an instant is inside if an odd number of them lie at or before it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


def interval_set(starts: Int64, ends: Int64) -> Int64:
    """The set covered by any intervals: unsorted, overlapping, touching or empty."""
    full = ends > starts
    starts, ends = starts[full], ends[full]
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    opens = np.ones(len(starts), bool)
    opens[1:] = starts[1:] > reach[:-1]
    closes = np.roll(opens, -1)
    return np.stack((starts[opens], reach[closes]), axis=1)


def union(a: Int64, b: Int64) -> Int64:
    return _combine(a, b, np.logical_or)


def intersection(a: Int64, b: Int64) -> Int64:
    return _combine(a, b, np.logical_and)


def difference(a: Int64, b: Int64) -> Int64:
    """What is in `a` and not in `b`."""
    return _combine(a, b, np.greater)


def measure(a: Int64) -> int:
    """Total length."""
    return int((a[:, 1] - a[:, 0]).sum())


def covered_before(a: Int64, instants: Int64) -> Int64:
    """Measure of the part of `a` before each instant, int64 like `instants`."""
    total = np.concatenate(([0], np.cumsum(a[:, 1] - a[:, 0]))).astype(np.int64)
    begun = np.searchsorted(a[:, 0], instants, side="right")
    ahead = np.zeros_like(total[begun])
    entered = begun > 0
    ahead[entered] = np.maximum(a[begun[entered] - 1, 1] - instants[entered], 0)
    return total[begun] - ahead


def _combine(a: Int64, b: Int64, keep: Callable[[Bool, Bool], Bool]) -> Int64:
    instants = np.union1d(a, b)
    kept = keep(_inside(a, instants), _inside(b, instants))
    # The last instant closes whatever is open there, so it begins no segment.
    return interval_set(instants[:-1][kept[:-1]], instants[1:][kept[:-1]])


def _inside(a: Int64, instants: Int64) -> Bool:
    return np.searchsorted(a.ravel(), instants, side="right") % 2 == 1

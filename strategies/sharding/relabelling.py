"""Which rank is which: a split into groups says nothing yet about who trains which, where ranks are equally fast.

The pairs of a group and a rank, by the bytes of the group that the rank has already, largest first: a group goes to the
rank if both are still free. Such a greedy matching keeps at least half of what the best one keeps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fsbench_strategies.sharding.split import Split

Int64 = NDArray[np.int64]


def relabel(split: Split) -> None:
    """Renames ranks of equal speed, if that leaves more bytes where they were loaded; loads change places with them."""
    ranks = len(split.speeds)
    alike = split.speeds[split.rank_of] == split.speeds[split.home]
    pairs, which = np.unique((split.rank_of * ranks + split.home)[alike], return_inverse=True)
    kept = np.bincount(which, split.bytes[alike], minlength=len(pairs))
    largest_first = pairs[np.argsort(-kept, kind="stable")]
    name = match(*np.divmod(largest_first, ranks), ranks)
    taken = np.zeros(ranks, bool)
    taken[name[name >= 0]] = True
    for speed in np.unique(split.speeds[name < 0]):
        name[(name < 0) & (split.speeds == speed)] = np.flatnonzero(~taken & (split.speeds == speed))
    renamed = name[split.rank_of]
    if split.bytes[renamed != split.home].sum() < split.moved_bytes:
        split.give(renamed)


def match(groups: Int64, ranks: Int64, size: int) -> Int64:
    """Greedily: of pairs in this order, those whose group and rank are both still free. The rank of each group,
    int64[size]; -1: none.

    A pair that is the first of both its group and its rank among those that are left is one of them: all of these are
    found at once, and what they exclude is left out, until nothing is left.
    """
    name = np.full(size, -1)
    while len(groups):
        firsts = first_places(groups, size)[groups] == first_places(ranks, size)[ranks]
        name[groups[firsts]] = ranks[firsts]
        taken = np.zeros(size, bool)
        taken[ranks[firsts]] = True
        left = (name[groups] < 0) & ~taken[ranks]
        groups, ranks = groups[left], ranks[left]
    return name


def first_places(values: Int64, size: int) -> Int64:
    """Where each of `size` values stands first, int64[size]; anything where it does not stand."""
    places = np.empty(size, np.int64)
    places[values[::-1]] = np.arange(len(values))[::-1]
    return places

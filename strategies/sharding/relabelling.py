"""Which rank is which: a split into groups says nothing yet about who trains which, where ranks are equally fast.

The pairs of a group and a rank, by the bytes of the group that the rank has already, largest first: a group goes to the
rank if both are still free. Such a greedy matching keeps at least half of what the best one keeps.
"""

from __future__ import annotations

import numpy as np

from fsbench_strategies.sharding.split import Split


def relabel(split: Split) -> None:
    """Renames ranks of equal speed, if that leaves more bytes where they were loaded; loads change places with them."""
    ranks = len(split.speeds)
    alike = split.speeds[split.rank_of] == split.speeds[split.home]
    pairs, which = np.unique((split.rank_of * ranks + split.home)[alike], return_inverse=True)
    kept = np.bincount(which, split.bytes[alike], minlength=len(pairs))
    name = np.full(ranks, -1)
    taken = np.zeros(ranks, bool)
    for pair in pairs[np.argsort(-kept, kind="stable")].tolist():
        group, rank = divmod(pair, ranks)
        if name[group] < 0 and not taken[rank]:
            name[group], taken[rank] = rank, True
    for speed in np.unique(split.speeds[name < 0]):
        name[(name < 0) & (split.speeds == speed)] = np.flatnonzero(~taken & (split.speeds == speed))
    renamed = name[split.rank_of]
    if split.bytes[renamed != split.home].sum() < split.moved_bytes:
        split.give(renamed)

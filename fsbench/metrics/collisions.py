"""Rows that consecutive batches share: the part of an embedding exchange that no prefetch can take out of the step."""

from __future__ import annotations

import numpy as np

from fsbench.samples import Int64


def count_collisions(step: Int64, row: Int64, steps: int) -> tuple[int, int]:
    """How many unique rows of a step the next step touches too, of how many: both summed over steps but the last.

    Over disjoint parts of the rows the counts add up.

    Args:
        step, row: int64[m], one touch each, in any order, repeats allowed; no row is negative.
        steps: steps are 0 to `steps - 1`.
    """
    span = int(row.max(initial=0)) + 1
    touched = np.unique(step * span + row)
    followed = touched[touched < (steps - 1) * span]
    again = np.isin(followed + span, touched, assume_unique=True, kind="sort")
    return int(again.sum()), len(followed)

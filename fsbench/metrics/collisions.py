"""Rows that consecutive batches share: the part of an embedding exchange that no prefetch can take out of the step."""

from __future__ import annotations

import numpy as np

from fsbench.metrics.sheet import Sheet
from fsbench.samples import Int64

_NO_ROW = "no row was looked up in a measured step before the last"


def count_collisions(step: Int64, row: Int64, steps: int) -> Int64:
    """int64[steps - 1, 2]: how many unique rows of a step the next step touches too, and how many there are.

    Over disjoint parts of the rows the counts add up.

    Args:
        step, row: int64[m], one touch each, in any order, repeats allowed; no row is negative.
        steps: steps are 0 to `steps - 1`.
    """
    span = int(row.max(initial=0)) + 1
    touched = np.unique(step * span + row)
    followed = touched[touched < (steps - 1) * span]
    again = followed[np.isin(followed + span, touched, assume_unique=True, kind="sort")]
    return np.stack([np.bincount(keys // span, minlength=max(0, steps - 1)) for keys in (again, followed)], axis=1)


def enter_collisions(sheet: Sheet, counts: Int64) -> None:
    """Enters the mean rate over rows and the 99th percentile over steps, from int64[steps - 1, 2] as counted above."""
    again, followed = counts.T
    sheet.enter_ratio("collision_rate", int(again.sum()), int(followed.sum()), _NO_ROW)
    rates = again[followed > 0] / followed[followed > 0]
    sheet.enter("collision_rate_p99", float(np.percentile(rates, 99)) if len(rates) else None, _NO_ROW)

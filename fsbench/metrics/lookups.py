"""What was asked of the owners of embedding rows, and how much of it copies on the ranks answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fsbench.metrics.sheet import Sheet


def enter_lookups(sheet: Sheet, asked: Sequence[Sequence[Sequence[int]]], classes: Sequence[Mapping[str, int]]) -> None:
    """Enters the imbalance of the owners, step by step, and the share of hot rows among those looked up.

    Args:
        asked: by rank and measured step, rows that it asked of each owner; empty where that is not told.
        classes: by rank, rows looked up by class, `hot` and `cold`; empty without classes.
    """
    told = min(map(len, asked), default=0)
    if told and told == max(map(len, asked)):
        rows = np.array(asked).sum(axis=0)
        mean = rows.sum() / rows.shape[1]
        sheet.enter_ratio("owner_imbalance", rows.max(axis=1).sum(), mean, "no row was asked for in a measured step")
    else:
        sheet.enter("owner_imbalance", None, "the embedding strategy does not tell what its owners were asked")
    hot, cold = (sum(of_rank.get(name, 0) for of_rank in classes) for name in ("hot", "cold"))
    classless = not any(classes)
    reason = "the embedding strategy has no hot rows" if classless else "no row was looked up"
    sheet.enter_ratio("hot_coverage", hot, hot + cold, reason)

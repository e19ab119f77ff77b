"""How often replicas synchronise, from the record of each rank's syncs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fsbench.metrics.sheet import Sheet

Int64 = NDArray[np.int64]
_NO_SYNC = "fewer than two syncs in the measured steps"


def enter_syncs(sheet: Sheet, steps: Sequence[Int64], seconds: float) -> None:
    """Enters the gaps between syncs and their rate.

    Args:
        steps: by rank, int64[syncs]: own steps before each sync of the measured time, in order.
        seconds: the measured time.
    """
    gaps = np.concatenate([np.diff(of_rank) for of_rank in steps]) if steps else np.zeros(0, np.int64)
    rounds = min((len(of_rank) for of_rank in steps), default=0)
    for name, of in (("mean", np.mean), ("p50", np.median), ("p95", partial(np.percentile, q=95))):
        sheet.enter(f"sync_gap_{name}", float(of(gaps)) if len(gaps) else None, _NO_SYNC)
    sheet.enter("syncs_per_min", 60 * rounds / seconds if rounds and seconds else None, "no sync in the measured steps")

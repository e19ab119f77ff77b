"""How often dense parameters were synchronised, and how stale what was sent had become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fsbench.metrics.sheet import Sheet

Int64 = NDArray[np.int64]
_NO_SYNC = "no sync of replicas in the measured steps"
_NO_GAP = "a single sync of replicas in the measured steps"
_UNTOLD = "the sync strategy does not tell when it took what it sent"


@dataclass(frozen=True)
class SyncTrace:
    """Syncs of one rank in the measured time, which was `seconds` long for it.

    `steps`: int64[syncs], own steps before each, in order. `lags`: own steps from the snapshot to the write-back of
    those of which that is known.
    """

    steps: Int64
    lags: Int64
    seconds: float


def enter_syncs(sheet: Sheet, ranks: Sequence[SyncTrace]) -> None:
    """Enters the gaps between syncs, their rate and how stale they were."""
    synced = any(len(rank.steps) for rank in ranks)
    gaps = _joined([np.diff(rank.steps) for rank in ranks])
    for name, of in (("mean", np.mean), ("p50", np.median), ("p95", _p95)):
        sheet.enter(f"sync_gap_{name}", float(of(gaps)) if len(gaps) else None, _NO_GAP if synced else _NO_SYNC)
    rates = [60 * len(rank.steps) / rank.seconds if rank.seconds else 0.0 for rank in ranks]
    sheet.enter("syncs_per_min", float(np.mean(rates)) if any(rates) else None, _NO_SYNC)
    lags = _joined([rank.lags for rank in ranks])
    for name, of in (("p50", np.median), ("p95", _p95)):
        sheet.enter(f"sync_lag_{name}", float(of(lags)) if len(lags) else None, _UNTOLD if synced else _NO_SYNC)


_p95 = partial(np.percentile, q=95)


def _joined(parts: Sequence[Int64]) -> Int64:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)

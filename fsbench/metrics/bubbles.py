"""Where each nanosecond of the windows went.

Compute is what a step is for; everything else in a window is bubble. A wait is split by whom it is for: as
long as the lane's operation had not started on every rank, the rank waited for a straggler; the rest is
transfer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fsbench.metrics.intervals import covered_before, interval_set
from fsbench.metrics.trace import (
    COMPUTE,
    INPUT,
    LABELS,
    OTHER,
    STRATEGY,
    WAIT_CLASSES,
    LaneTrace,
    RankTrace,
    RunTrace,
)

Int64 = NDArray[np.int64]

PARTS = (
    "compute",
    "preempted",
    "strategy",
    "input",
    "other",
    *(f"{name}_{kind}" for name in WAIT_CLASSES for kind in ("straggler", "transfer")),
)
"""What a nanosecond can be; each is exactly one."""

BUBBLE_PARTS = {
    "straggler": ("shuffle_straggler", "embedding_straggler", "dense_straggler"),
    "embedding": ("embedding_transfer",),
    "dense": ("dense_transfer",),
    "shuffle": ("shuffle_transfer",),
    "strategy": ("strategy",),
    "input": ("input",),
    "preempted": ("preempted",),
    # The suite's own bookkeeping travels on the control lane: no strategy is to blame for waits there.
    "other": ("other", "control_straggler", "control_transfer"),
}
"""The parts of the bubble as they are reported: all of `PARTS` but compute, each once."""


@dataclass(frozen=True)
class Bubbles:
    """The account. `ns`: int64[ranks, steps, parts] by `PARTS`, which sums over parts to the windows."""

    ns: Int64

    @property
    def windows(self) -> Int64:
        """int64[ranks, steps]"""
        return self.ns.sum(axis=2)

    @property
    def compute(self) -> Int64:
        """int64[ranks, steps]: measured compute."""
        return self.of("compute")

    @property
    def step_ns(self) -> Int64:
        """int64[steps]: a step takes as long as its slowest rank."""
        return self.windows.max(axis=0, initial=0)

    def of(self, *parts: str) -> Int64:
        """int64[ranks, steps]: nanoseconds in any of the given parts."""
        return self.ns[:, :, [PARTS.index(part) for part in parts]].sum(axis=2)

    def totals(self) -> dict[str, int]:
        """Nanoseconds by part, summed over ranks and steps."""
        return dict(zip(PARTS, self.ns.sum(axis=(0, 1)).tolist(), strict=True))

    def totals_by_rank(self) -> list[dict[str, int]]:
        """Nanoseconds by part, summed over steps, for each rank."""
        return [dict(zip(PARTS, row, strict=True)) for row in self.ns.sum(axis=1).tolist()]

    def shares(self) -> dict[str, float]:
        """`bubble` and its parts, `bubble_straggler` and so on; empty if nothing was measured.

        Each is a sum over ranks and steps, over the sum of the windows.
        """
        window = int(self.ns.sum())
        if not window:
            return {}
        parts = {f"bubble_{name}": int(self.of(*of).sum()) / window for name, of in BUBBLE_PARTS.items()}
        return {"bubble": (window - int(self.compute.sum())) / window} | parts

    def on_slowest_rank(self, ns: Int64) -> float | None:
        """Of int64[ranks, steps] that of each step's slowest rank, mean over steps; None if nothing was measured."""
        ranks, steps, _ = self.ns.shape
        if not ranks or not steps:
            return None
        return float(ns[self.windows.argmax(axis=0), np.arange(steps)].mean())

    def blocked_share(self) -> float | None:
        """Waits of class dense over the windows; None if nothing was measured."""
        window = int(self.ns.sum())
        return int(self.of("dense_straggler", "dense_transfer").sum()) / window if window else None


def account(trace: RunTrace) -> Bubbles:
    """Gives every nanosecond of every window its part.

    Raises:
        ValueError: a trace that is not whole (`RunTrace.validate`).
    """
    trace.validate()
    lanes = [trace.lanes[name] for name in trace.lane_names]
    stragglers = [straggler_times(lane, trace.shared_clock) for lane in lanes]
    rows = [
        _account_rank(rank, lanes, [sets[number] for sets in stragglers]) for number, rank in enumerate(trace.ranks)
    ]
    bubbles = Bubbles(np.stack(rows) if rows else np.zeros((0, 0, len(PARTS)), np.int64))
    windows = [rank.windows for rank in trace.ranks]
    assert not windows or np.array_equal(windows, bubbles.windows), "parts do not sum to the windows"
    return bubbles


def straggler_times(lane: LaneTrace, shared_clock: bool) -> list[Int64]:
    """For each rank, when its operations on a lane waited for another rank: an interval set."""
    begins = transfer_begins(lane, shared_clock)
    return [interval_set(ops.starts, until) for ops, until in zip(lane.ops, begins, strict=True)]


def transfer_begins(lane: LaneTrace, shared_clock: bool) -> Sequence[Int64]:
    """When each operation of a lane no longer waited for another rank: by rank, int64[operations].

    On a shared clock an operation waits from its own start until it has started everywhere. Without one: the
    rank that took the shortest waited for nobody, and what an operation took longer is its wait. With a server, no rank
    waits for another.
    """
    if not lane.collective or not lane.ops:
        return [ops.starts for ops in lane.ops]
    starts = np.stack([ops.starts for ops in lane.ops])
    ends = np.stack([ops.ends for ops in lane.ops])
    if shared_clock:
        # One that needs nothing from the last rank (a broadcast's source) can be over before that one starts.
        return list(np.minimum(starts.max(axis=0), ends))
    return list(ends - (ends - starts).min(axis=0))


def _account_rank(rank: RankTrace, lanes: Sequence[LaneTrace], stragglers: Sequence[Int64]) -> Int64:
    """int64[steps, parts] of one rank; `stragglers`: by lane, when its operations waited for another rank."""
    ns = np.zeros((len(rank.windows), len(PARTS)), np.int64)
    lengths, step = rank.ends - rank.starts, rank.step_of

    def add(chosen: NDArray[np.bool_], part: str, amount: Int64) -> None:
        np.add.at(ns[:, PARTS.index(part)], step[chosen], amount)

    for label in (STRATEGY, INPUT, OTHER):
        plain = (rank.labels == label) & (lengths > 0)
        add(plain, LABELS[label], lengths[plain])

    compute = (rank.labels == COMPUTE) & (lengths > 0)
    ran = np.minimum(rank.cpu_ns[compute], lengths[compute])
    add(compute, "compute", ran)
    add(compute, "preempted", lengths[compute] - ran)

    for number, (lane, waiting) in enumerate(zip(lanes, stragglers, strict=True)):
        wait = (rank.lanes == number) & (lengths > 0)
        if not wait.any():
            continue
        straggler = covered_before(waiting, rank.ends[wait]) - covered_before(waiting, rank.starts[wait])
        add(wait, f"{lane.waits_as}_straggler", straggler)
        add(wait, f"{lane.waits_as}_transfer", lengths[wait] - straggler)
    return ns

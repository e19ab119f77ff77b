"""Plans of the built-in collectives: into how many operations an exchange is cut, and what goes through host memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fsbench.axes import LaneSpec
from fsbench.sim.contract import CollectivesPlan
from fsbench.sim.plan import Operation, Script
from fsbench.sim.topology import Int64


class BackendPlan(CollectivesPlan):
    """`piece`: no rank sends another more bytes than this at once."""

    def __init__(self, script: Script, piece: int) -> None:
        self._script = script
        self._piece = piece

    def all_to_all(
        self, lane: LaneSpec, rows: Int64, row_bytes: int, *, largest: int, kind: str, after: Sequence[Operation] = ()
    ) -> Operation:
        at_once = max(1, self._piece // max(1, row_bytes))
        for first in range(0, max(1, largest), at_once):
            traffic = self._script.topology.all_to_all(np.clip(rows - first, 0, at_once) * row_bytes)
            last = self._script.issue(lane, "all_to_all", traffic, kind=kind, after=after)
        return last

    def all_gather(self, lane: LaneSpec, block: int, *, kind: str, after: Sequence[Operation] = ()) -> Operation:
        traffic = self._script.topology.all_gather(block)
        return self._script.issue(lane, "all_gather", traffic, kind=kind, after=after)

    def all_reduce(self, lane: LaneSpec, size: int, *, kind: str, after: Sequence[Operation] = ()) -> Operation:
        traffic = self._script.topology.all_reduce(size)
        return self._script.issue(lane, "all_reduce", traffic, kind=kind, after=after)


class HostStagedPlan(BackendPlan):
    """`most`: bytes from one rank to another at once. `buffers`: with one, copies and wire take turns."""

    def __init__(self, script: Script, *, piece: int, most: int, buffers: int) -> None:
        super().__init__(script, piece)
        self._most = most
        self._buffers = buffers

    def all_to_all(
        self, lane: LaneSpec, rows: Int64, row_bytes: int, *, largest: int, kind: str, after: Sequence[Operation] = ()
    ) -> Operation:
        sizes = rows * row_bytes
        np.fill_diagonal(sizes, 0)  # what a rank keeps passes no buffer
        firsts = range(0, max(1, largest * row_bytes), self._most)
        for place, first in enumerate(firsts):
            chunk = np.clip(sizes - first, 0, self._most)
            last = self._script.issue(
                lane,
                "all_to_all",
                self._script.topology.all_to_all(chunk),
                kind=kind,
                copied=float(max(chunk.sum(axis=0).max(), chunk.sum(axis=1).max())),
                alone=self._alone(place, len(firsts)),
                after=after,
            )
        return last

    def all_gather(self, lane: LaneSpec, block: int, *, kind: str, after: Sequence[Operation] = ()) -> Operation:
        firsts = range(0, max(1, block), self._most)
        for place, first in enumerate(firsts):
            size = min(self._most, block - first)
            last = self._script.issue(
                lane,
                "all_gather",
                self._script.topology.all_gather(size),
                kind=kind,
                copied=float(size * self._script.ranks),
                alone=self._alone(place, len(firsts)),
                after=after,
            )
        return last

    def _alone(self, place: int, chunks: int) -> int:
        """How many of a chunk's two copies have no wire beside them."""
        return 2 if self._buffers == 1 else int(place == 0) + int(place == chunks - 1)

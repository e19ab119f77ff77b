"""What the recorder writes down of one lane on one rank."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fsbench.launch.activity import LaneActivity
from fsbench.metrics.trace import LaneOps

if TYPE_CHECKING:
    from fsbench.collect.device_ops import DeviceOps


class OperationLog:
    """Operations of one lane on one rank, in issue order: the position is the sequence number.

    `host`: the ranks of this rank's host, itself included. What goes to them crosses no link between hosts.
    """

    def __init__(self, host: range) -> None:
        self.host = host
        self.kind = "other"
        """What the bytes of the operations to come are; set by the lane."""
        self.lane = "unnamed"
        self.activity: LaneActivity | None = None
        """Where the operation under way is told to the launcher, if it watches."""
        self.on_device: DeviceOps | None = None
        """What times the operations, if they are on a stream."""
        self._begun = 0
        self._checks = 0
        self._check_bytes = 0
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._bytes: list[int] = []
        self._crossing: list[int] = []
        self._kinds: list[str] = []
        self._names: list[str] = []

    def announce(self, name: str) -> None:
        """An operation is about to begin; it is under way for the launcher until `settle`."""
        self._begun += 1
        if self.activity:
            self.activity.begin(self._begun, f"{name} {self.kind}")

    def settle(self) -> None:
        """It is done, or on a stream."""
        if self.activity:
            self.activity.end()

    def checked(self, crossing: int) -> None:
        """Ranks compared what they mean, at the cost of so many bytes to other hosts."""
        self._checks += 1
        self._check_bytes += crossing

    def begin(self, name: str, bytes_sent: int, crossing: int) -> None:
        self._names.append(name)
        self._kinds.append(self.kind)
        self._bytes.append(bytes_sent)
        self._crossing.append(crossing)
        self._starts.append(time.monotonic_ns())
        self._ends.append(self._starts[-1])
        if self.on_device:
            self.on_device.begin()

    def end(self) -> None:
        self._ends[-1] = time.monotonic_ns()

    def clear(self) -> None:
        for column in (self._starts, self._ends, self._bytes, self._crossing, self._kinds, self._names):
            column.clear()
        if self.on_device:
            self.on_device.clear()
        self._checks = self._check_bytes = 0

    def crossing(self) -> tuple[int, int]:
        """Bytes that left this rank for other hosts, and in how many operations it sent them, checks included."""
        return sum(self._crossing) + self._check_bytes, len(self._crossing) + self._checks

    def received(self) -> int:
        """Bytes that came from a server; those of ranks are counted where they are sent."""
        return sum(size for size, name in zip(self._bytes, self._names, strict=True) if name == "receive")

    def operations(self) -> dict[str, int]:
        """How many operations of each name (`all_to_all rows`) were issued."""
        counts: dict[str, int] = {}
        for name, kind in zip(self._names, self._kinds, strict=True):
            counts[f"{name} {kind}"] = counts.get(f"{name} {kind}", 0) + 1
        return counts

    def sent(self) -> dict[str, int]:
        """Bytes by kind."""
        totals: dict[str, int] = {}
        for kind, size in zip(self._kinds, self._bytes, strict=True):
            totals[kind] = totals.get(kind, 0) + size
        return totals

    def sequence(self) -> list[tuple[str, str, int]]:
        """Name, kind and bytes of each operation, in issue order."""
        # A background lane may be adding to them.
        return list(zip(self._names, self._kinds, self._bytes, strict=False))

    def arrays(self, kinds: Sequence[str]) -> LaneOps:
        """As arrays; `kinds` gives the code of each kind."""
        code = {kind: i for i, kind in enumerate(kinds)}
        return LaneOps(
            starts=self.on_device.starts() if self.on_device else np.array(self._starts, dtype=np.int64),
            ends=self.on_device.ends() if self.on_device else np.array(self._ends, dtype=np.int64),
            bytes_sent=np.array(self._bytes, dtype=np.int64),
            kinds=np.array([code[kind] for kind in self._kinds], dtype=np.int16),
        )

    def kinds(self) -> set[str]:
        return set(self._kinds)

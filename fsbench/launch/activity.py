"""What each lane of each rank does: one small memory-mapped file a rank, written in passing, read by the launcher.

It tells, without the help of a rank that may be stuck, which operation it waits in and which one others wait for.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsbench.errors import FsbenchError
from fsbench.launch.heartbeat import map_new

MOST_LANES = 512
REQUESTS = "requests"
"""The kind of what ranks ask of servers."""
_SLOT = 128


@dataclass(frozen=True)
class Operation:
    """The last operation that a rank has begun on a lane: `all_to_all rows`.

    `number`: how many it has begun there, this one included; ranks that mean the same operation have the same.
    `since_ns`: when it began, monotonic. `under_way`: it has not ended; of an asynchronous one only its issue is known.
    `members`: the numbers of the processes that have a part in the lane; empty if all ranks have.
    """

    lane: str
    number: int
    name: str
    since_ns: int
    under_way: bool
    members: frozenset[int] = frozenset()

    @property
    def idle(self) -> bool:
        """A server waits for whatever a rank may ask of it, which need not be soon."""
        return self.name == f"receive {REQUESTS}"


class LaneActivity:
    """Written by the one thread that issues the operations of a lane; `begin` and `end` take about a microsecond."""

    def __init__(self, board: mmap.mmap, start: int, lane: str, members: Sequence[int]) -> None:
        self._map, self._start, self._lane = board, start, lane
        self._members = ",".join(map(str, members))

    def begin(self, number: int, name: str) -> None:
        text = f"1\t{number}\t{time.monotonic_ns()}\t{self._members}\t{self._lane}\t{name}".encode()[:_SLOT]
        self._map[self._start : self._start + _SLOT] = text.ljust(_SLOT, b"\0")

    def end(self) -> None:
        self._map[self._start] = ord("0")


class Activity:
    """All lanes of a rank."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._map = map_new(_path(folder, rank), MOST_LANES * _SLOT)
        self._lanes = 0

    def lane(self, name: str, members: Sequence[int] = ()) -> LaneActivity:
        """A place for one more lane, in which only the given processes have a part, if not all ranks have.

        Raises:
            FsbenchError: there are `MOST_LANES` already.
        """
        if self._lanes == MOST_LANES:
            raise FsbenchError(f"lane {name!r}: a rank has at most {MOST_LANES} lanes")
        self._lanes += 1
        return LaneActivity(self._map, (self._lanes - 1) * _SLOT, name, members)


def read_activity(folder: Path, rank: int) -> Mapping[str, Operation]:
    """By lane, of lanes that had an operation; empty for a rank that has not come so far."""
    try:
        content = _path(folder, rank).read_bytes()
    except FileNotFoundError:
        return {}
    slots = (content[start : start + _SLOT] for start in range(0, len(content), _SLOT))
    return {operation.lane: operation for slot in slots if (operation := _read(slot))}


def _read(slot: bytes) -> Operation | None:
    fields = slot.rstrip(b"\0").decode(errors="replace").split("\t")
    # Read while it is written, a slot of a lane that moves may be torn; what stands still is whole.
    if len(fields) != 6 or not (fields[1].isdecimal() and fields[2].isdecimal()):
        return None
    under_way, number, since_ns, members, lane, name = fields
    numbers = frozenset(int(member) for member in members.split(",") if member.isdecimal())
    return Operation(lane, int(number), name, int(since_ns), under_way == "1", numbers)


def _path(folder: Path, rank: int) -> Path:
    return folder / f"activity-{rank}"

"""What moved the bytes of the ranks' operations on GPUs: kernels on multiprocessors, or copy engines.

NCCL decides that by itself and tells nobody. A profiler's trace does: whatever a host thread launches inside the range
of an operation belongs to it, and is a kernel or a memory copy. Names say little and are asked for one thing only:
kernels that make ranks wait for each other move nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fsbench.axes import Engine

_PREFIX = "fsbench"
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_SIGNALS = re.compile(r"barrier|put_signal|wait_signal|signal_kernel", re.IGNORECASE)
"""Kernels of symmetric memory by which ranks meet: some threads, no data."""
Event = Mapping[str, Any]
"""Of a trace in Chrome's format, as torch.profiler exports it; times in microseconds."""


def range_name(lane: str, operation: str) -> str:
    return f"{_PREFIX}:{lane}:{operation}"


class Operations(NamedTuple):
    """Those of one name on one lane."""

    lane: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} on lane {self.lane}"


@dataclass
class Moved:
    """What was seen of `count` operations: how many a kernel moved, how many copy engines alone, and how many nothing
    (an empty one, or records that the profiler lost). `records`: names of all that ran in their ranges."""

    count: int = 0
    by_kernels: int = 0
    by_copies: int = 0
    records: Counter[str] = field(default_factory=Counter)

    @property
    def unseen(self) -> int:
        return self.count - self.by_kernels - self.by_copies

    def add(self, records: Sequence[Event]) -> None:
        """One operation more."""
        self.count += 1
        self.records.update(record["name"] for record in records)
        if any(_is_mover(record) for record in records):
            self.by_kernels += 1
        elif any(record["cat"] == "gpu_memcpy" for record in records):
            self.by_copies += 1


@dataclass(frozen=True)
class Verdict:
    """`fallback`: what ran as something else than was asked for, in one line; None if nothing did. `unknown`: what
    could not be told, and why."""

    fallback: str | None
    unknown: Sequence[str]


class IncompleteTrace(Exception):
    """The profiler's records contradict themselves: nothing is told from them."""


class _Range(NamedTuple):
    begin: float
    end: float
    operations: Operations


def moved(events: Iterable[Event]) -> dict[Operations, Moved]:
    """By operation, what moved it.

    Raises:
        IncompleteTrace: a record has no time, ends before it starts, or runs before it was launched.
    """
    complete = [event for event in events if event.get("ph") == "X"]
    ranges = _ranges(complete)
    launches = {_correlation(event): event for event in complete if event.get("cat") in _LAUNCHES}
    found: dict[_Range, list[Event]] = {one: [] for of_thread in ranges.values() for one in of_thread}
    for record in complete:
        if record.get("cat") in _ON_DEVICE and (launch := launches.get(_correlation(record))):
            _check(record, launch)
            if inside := _enclosing(ranges, launch):
                found[inside].append(record)
    totals: dict[Operations, Moved] = {}
    for one, records in found.items():
        totals.setdefault(one.operations, Moved()).add(records)
    return totals


def judge(asked: Mapping[str, Engine], seen: Mapping[Operations, Moved], ranks: int) -> Verdict:
    """Whether operations were moved by what a strategy asked for (`Collectives.engines`), in either direction."""
    if ranks == 1:
        return Verdict(None, ["one rank: nothing moves between ranks"])
    fallbacks, unknown = [], []
    for operations, of_them in seen.items():
        if operations.name not in asked:
            continue
        wanted = asked[operations.name]
        others = of_them.by_kernels if wanted == "copy engines" else of_them.by_copies
        if others:
            fallbacks.append(_fallback(operations, of_them, wanted, others))
        elif of_them.unseen == of_them.count:
            unknown.append(f"{operations}: the profiler saw nothing in {of_them.count} operations")
    return Verdict("; ".join(fallbacks) or None, unknown)


def _fallback(operations: Operations, of_them: Moved, wanted: Engine, others: int) -> str:
    names = ", ".join(name for name, _ in of_them.records.most_common(3))
    return f"{operations} asked for {wanted}; {others} of {of_them.count} ran as {names}"


def _ranges(events: Sequence[Event]) -> dict[tuple[Any, Any], list[_Range]]:
    """By host thread, in order. Ranges of operations do not nest."""
    by_thread = defaultdict(list)
    for event in events:
        prefix, _, rest = str(event.get("name")).partition(":")
        if event.get("cat") == "user_annotation" and prefix == _PREFIX:
            lane, _, name = rest.rpartition(":")
            one = _Range(event["ts"], event["ts"] + event["dur"], Operations(lane, name))
            by_thread[event["pid"], event["tid"]].append(one)
    return {thread: sorted(of_thread) for thread, of_thread in by_thread.items()}


def _enclosing(ranges: Mapping[tuple[Any, Any], list[_Range]], launch: Event) -> _Range | None:
    of_thread = ranges.get((launch["pid"], launch["tid"]), [])
    before = bisect_right(of_thread, launch["ts"], key=lambda one: one.begin) - 1
    return of_thread[before] if before >= 0 and launch["ts"] < of_thread[before].end else None


def _correlation(event: Event) -> Any:
    return event.get("args", {}).get("correlation")


def _check(record: Event, launch: Event) -> None:
    what = f"{record['name']} at {record['ts']}"
    if record["ts"] <= 0:
        raise IncompleteTrace(f"{what}: no time")
    if record["dur"] < 0:
        raise IncompleteTrace(f"{what}: ends before it starts")
    if record["ts"] < launch["ts"]:
        raise IncompleteTrace(f"{what}: runs before its launch at {launch['ts']}")


def _is_mover(record: Event) -> bool:
    return record["cat"] == "kernel" and not _SIGNALS.search(record["name"])

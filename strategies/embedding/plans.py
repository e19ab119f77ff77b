"""Plans of `plain` and `prioritized`: the messages of both, and whose work is between them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from fsbench.axes import CRITICAL, EXCHANGE, IDS, LaneSpec
from fsbench.sim.contract import Batch, EmbeddingPlan, Stage, TableRows
from fsbench.sim.plan import Operation
from fsbench.sim.topology import Int64

_WIRE_BYTES = {"fp32": 4, "bf16": 2}
_COUNT_BYTES, _SLOT_BYTES, _BIT_BYTES = 16, 4, 1
"""Of a pair of counts, of a wanted row, and of its class."""


class ExchangePlan(EmbeddingPlan):
    """What both have in common. `wire`: what rows and gradients are sent as."""

    def __init__(self, stage: Stage, wire: str | None) -> None:
        self._stage, self._script = stage, stage.script
        self._itemsize = _WIRE_BYTES[wire] if wire else stage.itemsize

    def _ask(self, rows: TableRows, lane: LaneSpec, *, waits: bool) -> Operation:
        """Owners are told the rows that are wanted of them. `waits`: on the main thread, for each message."""
        ones = np.ones_like(rows.wanted)
        told = self._exchange(lane, ones, _COUNT_BYTES, 1, "ids")
        if waits:
            self._script.wait(told)
        told = self._exchange(lane, rows.wanted, _SLOT_BYTES, rows.largest, "ids")
        if waits:
            self._script.wait(told)
        return told

    def _exchange(
        self, lane: LaneSpec, rows: Int64, row_bytes: int, largest: int, kind: str, after: tuple[Operation, ...] = ()
    ) -> Operation:
        return self._stage.collectives.all_to_all(lane, rows, row_bytes, largest=largest, kind=kind, after=after)

    def _sent_row(self, name: str) -> int:
        """Bytes of a row on the wire."""
        return self._stage.tables[name].dim * self._itemsize

    def _work(self, name: str, rows: Int64) -> Int64:
        """What it takes each rank to read, spread or update so many rows: nanoseconds [ranks]."""
        return self._stage.costs.of(row_bytes=rows * self._stage.tables[name].dim * self._stage.itemsize)


class PlainPlan(ExchangePlan):
    """`ahead`: owners are asked one step ahead."""

    def __init__(self, stage: Stage, *, wire: str | None, ahead: bool) -> None:
        super().__init__(stage, wire)
        self._ahead = ahead
        self._coming: dict[int, list[Operation]] = {}

    def prefetch(self, batch: Batch) -> None:
        self._coming[batch.step] = []
        for rows in batch.tables.values():
            self._script.work(IDS, self._stage.costs.of(ids=rows.ids))
            self._coming[batch.step].append(self._ask(rows, IDS, waits=False))

    def lookup(self, batch: Batch) -> None:
        for told in self._coming.pop(batch.step, []):
            self._script.wait(told)
        for rows in () if self._ahead else batch.tables.values():
            self._script.strategy(self._stage.costs.of(ids=rows.ids))
            self._ask(rows, EXCHANGE, waits=True)
        for name, rows in batch.tables.items():
            self._script.strategy(self._work(name, rows.wanted.sum(axis=0)))
            self._script.wait(self._exchange(EXCHANGE, rows.wanted.T, self._sent_row(name), rows.largest, "rows"))
            self._script.strategy(self._work(name, rows.ids))

    def update(self, batch: Batch) -> None:
        for name, rows in batch.tables.items():
            self._script.wait(self._exchange(EXCHANGE, rows.wanted, self._sent_row(name), rows.largest, "gradients"))
            self._script.strategy(self._work(name, rows.wanted.sum(axis=0)))


@dataclass
class _OnItsWay:
    """A batch of one table. `met`: its IDs are with their owners, and classes known; then its rows by class."""

    rows: TableRows
    met: Operation
    early: Operation
    shared: Operation | None


@dataclass
class _Rest:
    """Gradients that wait for the next step."""

    name: str
    rows: Int64
    largest: int


class PrioritizedPlan(ExchangePlan):
    """See `fsbench_strategies.embedding.prioritized`."""

    def __init__(self, stage: Stage, *, wire: str | None) -> None:
        super().__init__(stage, wire)
        self._batches: dict[int, dict[str, _OnItsWay]] = {}
        self._rest: list[_Rest] = []
        self._finishing: deque[list[Operation]] = deque([[], []], maxlen=2)

    def prefetch(self, batch: Batch) -> None:
        self._send_rest()
        previous = self._batches.get(batch.step - 1, {})
        self._batches[batch.step] = {
            name: self._meet(name, rows, previous.get(name)) for name, rows in batch.tables.items()
        }

    def _meet(self, name: str, rows: TableRows, previous: _OnItsWay | None) -> _OnItsWay:
        self._script.work(IDS, self._stage.costs.of(ids=rows.ids))
        met = self._ask(rows, IDS, waits=False)
        if previous is not None:
            both, largest = rows.wanted + previous.rows.wanted, rows.largest + previous.rows.largest
            self._script.work(IDS, self._stage.costs.of(ids=both.sum(axis=0)))
            met = self._exchange(IDS, both.T, _BIT_BYTES, largest, "ids")
        early = self._read(EXCHANGE, name, rows, rows.wanted - rows.shared, "rows.exclusive", (met,))
        shared = None
        if previous is None:
            behind = (*self._finishing[-1], met)
            shared = self._read(CRITICAL, name, rows, rows.shared, "rows.collision", behind)
        return _OnItsWay(rows, met, early, shared)

    def _read(
        self, lane: LaneSpec, name: str, rows: TableRows, chosen: Int64, kind: str, after: tuple[Operation, ...]
    ) -> Operation:
        self._script.work(lane, self._work(name, chosen.sum(axis=0)), after=after)
        return self._exchange(lane, chosen.T, self._sent_row(name), rows.largest, kind)

    def lookup(self, batch: Batch) -> None:
        for name, way in self._batches[batch.step].items():
            for awaited in (way.early, way.shared, way.met):
                assert awaited is not None, "rows are looked up before their last update was sent"
                self._script.wait(awaited)
            self._script.strategy(self._work(name, way.rows.wanted.sum(axis=1) + way.rows.ids))
        for finished in self._finishing[0]:
            self._script.wait(finished)

    def update(self, batch: Batch) -> None:
        coming = self._batches.get(batch.step + 1, {})
        for name, way in self._batches.pop(batch.step).items():
            self._send_urgent(name, way, coming.get(name))

    def _send_urgent(self, name: str, way: _OnItsWay, coming: _OnItsWay | None) -> None:
        rows = way.rows
        self._script.wait(way.met)
        if coming is not None:
            self._script.wait(coming.met)
        self._script.strategy(self._work(name, rows.wanted.sum(axis=1)))
        urgent = np.zeros_like(rows.wanted) if coming is None else rows.needed
        if coming is not None:
            self._exchange(CRITICAL, urgent, self._sent_row(name), rows.largest, "gradients.collision")
            self._script.work(CRITICAL, self._work(name, urgent.sum(axis=0)))
            coming.shared = self._read(CRITICAL, name, coming.rows, coming.rows.shared, "rows.collision", ())
        self._rest.append(_Rest(name, rows.wanted - urgent, rows.largest))

    def _send_rest(self) -> None:
        self._finishing.append([self._finish(rest) for rest in self._rest])
        self._rest = []

    def _finish(self, rest: _Rest) -> Operation:
        self._exchange(EXCHANGE, rest.rows, self._sent_row(rest.name), rest.largest, "gradients.exclusive")
        return self._script.work(EXCHANGE, self._work(rest.name, rest.rows.sum(axis=0)))

    def flush(self) -> None:
        self._send_rest()
        for pending in (*self._finishing[0], *self._finishing[1]):
            self._script.wait(pending)

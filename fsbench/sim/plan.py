"""The plan of a run: what all ranks do and issue, in the order in which they do it, and after what.

All ranks have the same operations; how much each has to do or to send differs. A rank has a main thread and a thread
for each lane. An operation starts on a rank when the one before it on its thread has ended there, and all that it comes
after; a collective goes on when it has started on every rank. Nothing here knows when: `fsbench.sim.engine` does.

Strategies write their part with a `Script`, as they issue it in a real run: see `fsbench.axes.Strategy.plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from fsbench.axes import LaneSpec
from fsbench.sim.topology import Int64, Topology, Traffic

MAIN = "main"
"""The thread that trains. The others are named as their lanes."""

Engine = Literal["sm", "copy", "host"]
"""What does it: the multiprocessors of a device, its copy engines, or the CPU."""
Label = Literal["compute", "strategy", "input"]


@dataclass(frozen=True, eq=False)
class Operation:
    """`after`: what must have ended on the same rank, beside the operation before it on its thread."""

    thread: str
    after: tuple[Operation, ...]


@dataclass(frozen=True, eq=False)
class Work(Operation):
    """What a rank does on its own: int64[ranks] nanoseconds on an idle machine of speed 1. `label`: on the main
    thread, what the time is; of no meaning on a lane."""

    label: Label
    engine: Engine
    ns: Int64


@dataclass(frozen=True, eq=False)
class Wait(Operation):
    """The main thread waits for the one operation that this comes after."""

    @property
    def lane(self) -> str:
        return self.after[0].thread


@dataclass(frozen=True, eq=False)
class StepEnd(Operation):
    """On the main thread: a window ends, and the next one begins."""


@dataclass(frozen=True, eq=False)
class Collective(Operation):
    """What the recorder sees as one operation: its `name` (`all_to_all`), `kind` of bytes, and what each rank sends.

    `copied`: bytes that the busiest rank moves into host memory for it, and out of it again on the other side, while
    the wire is at its neighbours'. `alone`: how many such copies have no wire beside them: the first one in, the last
    one out.
    """

    name: str
    kind: str
    traffic: Traffic
    engine: Engine
    copied: float = 0.0
    alone: int = 0


@dataclass(frozen=True, eq=False)
class Pause(Operation):
    """A background loop waits for its next round: int64[ranks] nanoseconds, whatever the speed of the rank."""

    ns: Int64


@dataclass(frozen=True, eq=False)
class Loop:
    """What a lane does again and again beside the steps, until the last one is over.

    `next_round`: the operations of a round in which all ranks have a part, from what the round before it took on each
    rank, int64[ranks] nanoseconds; None for the first.
    """

    lane: str
    next_round: Callable[[Int64 | None], Sequence[Operation]]


@dataclass
class Script:
    """Where strategies write what they do, all ranks at once, in the order in which a rank does it.

    What is issued on a lane is queued there when the main thread has come to the place where it is written. `device`:
    of the ranks. `on_host`: classes of lanes that the collectives carry through host memory.
    """

    topology: Topology
    device: Literal["cpu", "gpu"]
    on_host: frozenset[str] = frozenset()
    _written: list[Operation | Loop] = field(default_factory=list, init=False)
    _main: tuple[Operation, ...] = field(default=(), init=False)

    @property
    def ranks(self) -> int:
        return self.topology.ranks

    def compute(self, ns: ArrayLike) -> Operation:
        """Forward, backward or the dense optimizer, on the main thread. `ns`: one for each rank, or one for all."""
        return self._do(ns, "compute", "sm" if self.device == "gpu" else "host")

    def strategy(self, ns: ArrayLike) -> Operation:
        """A strategy's own work on the main thread."""
        return self._do(ns, "strategy", "host")

    def input(self, ns: ArrayLike) -> Operation:
        """Loading, on the main thread."""
        return self._do(ns, "input", "host")

    def wait(self, operation: Operation) -> None:
        """The main thread waits for it, and the time is of its lane's class."""
        self._step(Wait(MAIN, (operation,)))

    def work(self, lane: LaneSpec, ns: ArrayLike, *, after: Sequence[Operation] = ()) -> Operation:
        """Work of a lane's own thread, between its operations."""
        return self._add(Work(lane.name, (*self._main, *after), "strategy", "host", self._each(ns)))

    def issue(
        self,
        lane: LaneSpec,
        name: str,
        traffic: Traffic,
        *,
        kind: str,
        copied: float = 0.0,
        alone: int = 0,
        after: Sequence[Operation] = (),
    ) -> Operation:
        """A collective on a lane: see `Collective`. Who wants bytes moved asks the cell's collectives, who issue."""
        engine: Engine = "host" if self.runs_on_host(lane) else "sm"
        return self._add(
            Collective(lane.name, (*self._main, *after), name, kind, traffic, engine, copied, alone),
        )

    def runs_on_host(self, lane: LaneSpec) -> bool:
        """Whether a lane's operations are the CPU's: always without a device, else as in a real run."""
        return self.device == "cpu" or lane.host or lane.waits_as in self.on_host

    def loop(
        self,
        lane: LaneSpec,
        write_round: Callable[[], object],
        pause: Callable[[Int64], float],
    ) -> None:
        """Starts a loop when the main thread gets here. `write_round` writes a round's operations on the lane; `pause`:
        nanoseconds between two rounds, from what the earlier of them took on each rank."""
        begun = self._main

        def next_round(took: Int64 | None) -> Sequence[Operation]:
            outer, self._written, self._main = (self._written, self._main), [], begun if took is None else ()
            if took is not None:
                self._written.append(Pause(lane.name, (), self._each(pause(took))))
            write_round()
            written = [operation for operation in self._written if isinstance(operation, Operation)]
            self._written, self._main = outer
            return written

        self._written.append(Loop(lane.name, next_round))

    def end_step(self) -> list[Operation | Loop]:
        """Ends the window; what was written since the last one, in order."""
        self._step(StepEnd(MAIN, ()))
        return self.take()

    def take(self) -> list[Operation | Loop]:
        """What was written and not yet taken."""
        written, self._written = self._written, []
        return written

    def _do(self, ns: ArrayLike, label: Label, engine: Engine) -> Operation:
        return self._step(Work(MAIN, (), label, engine, self._each(ns)))

    def _step(self, operation: Operation) -> Operation:
        self._main = (operation,)
        return self._add(operation)

    def _add(self, operation: Operation) -> Operation:
        self._written.append(operation)
        return operation

    def _each(self, ns: ArrayLike) -> Int64:
        return np.broadcast_to(np.rint(ns).astype(np.int64), (self.ranks,))

"""Adds times to a plan: all ranks at once, from one event to the next.

An event is a collective that begins, as its last rank has come, or one that is done with a link. Between two events
ranks do not touch each other, so that all they do follows by arithmetic on arrays [ranks]. What lies beyond the next
event is known only if nothing changes until then: where the event makes compute slower or faster, it is done again.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fsbench.errors import FsbenchError
from fsbench.sim.clock import ComputeClock
from fsbench.sim.machine import Machine
from fsbench.sim.plan import MAIN, Collective, Loop, Operation, Pause, Work
from fsbench.sim.topology import Int64
from fsbench.sim.transfers import Transfers


@dataclass
class Times:
    """Of an operation, int64[ranks] nanoseconds. `end`: None while it is not known."""

    start: Int64
    end: Int64 | None


@dataclass
class _Thread:
    """`queue`: what is still to be done, in order. `last`: what was done before. `loop`: what refills it."""

    queue: deque[Operation] = field(default_factory=deque)
    last: Operation | None = None
    done: list[Operation] = field(default_factory=list)
    loop: Loop | None = None
    round: list[Operation] = field(default_factory=list)


@dataclass(frozen=True)
class Executed:
    """What came of a plan: by thread its operations in order, and when each was on each rank."""

    ranks: int
    threads: dict[str, list[Operation]]
    times: dict[Operation, Times]


def execute(steps: Iterable[Sequence[Operation | Loop]], machine: Machine) -> Executed:
    """Runs a plan from its first step to its last.

    Args:
        steps: what is written in each, in order. Taken one by one, when the ranks get there.

    Raises:
        FsbenchError: operations that wait for each other, or for something that is never done.
    """
    return _Execution(steps, machine).run()


class _Execution:
    def __init__(self, steps: Iterable[Sequence[Operation | Loop]], machine: Machine) -> None:
        self._steps = iter(steps)
        self._machine = machine
        self._threads: dict[str, _Thread] = {MAIN: _Thread()}
        self._times: dict[Operation, Times] = {}
        self._follows: dict[Operation, tuple[Operation, ...]] = {}
        self._durations: dict[Operation, Int64] = {}
        self._random = np.random.default_rng(machine.seed)
        self._random_of_loops = np.random.default_rng([machine.seed, 1])
        self._transfers = Transfers(machine)
        self._clock = ComputeClock()
        self._origin = np.zeros(machine.topology.ranks, np.int64)
        self._tentative: list[Operation] = []
        """Evaluated, in order, and not over on every rank at the last event."""
        self._waiting: dict[str, Collective] = {}
        """By thread, collectives to which every rank will have come, if nothing changes."""
        self._written_out = False

    def run(self) -> Executed:
        self._advance()
        while (now := self._next_event()) is not None:
            for ended in self._transfers.advance(now):
                self._end(ended, now)
            for thread, collective in list(self._waiting.items()):
                if int(self._times[collective].start.max()) == now:
                    del self._waiting[thread]
                    self._transfers.begin(collective, now)
            self._set_speed(now)
            self._advance()
        return Executed(
            len(self._origin),
            {name: [operation for operation in thread.done if self._known(operation)] for name, thread in self._all()},
            self._times,
        )

    def _all(self) -> Iterable[tuple[str, _Thread]]:
        return self._threads.items()

    def _known(self, operation: Operation | None) -> bool:
        return operation is None or (operation in self._times and self._times[operation].end is not None)

    def _next_event(self) -> int | None:
        """None when the run is over: all but its loops is done, and they have nothing more to do in its time."""
        begins = [int(self._times[collective].start.max()) for collective in self._waiting.values()]
        under_way = self._transfers.next_event()
        event = min(begins if under_way is None else [*begins, under_way], default=None)
        unfinished = [name for name, thread in self._all() if thread.loop is None and not self._finished(thread)]
        if event is None and unfinished:
            raise FsbenchError(f"the plan does not go on: {' and '.join(unfinished)} wait for what is never done")
        return event if event is not None and (unfinished or event < self._last_end()) else None

    def _finished(self, thread: _Thread) -> bool:
        return not thread.queue and self._known(thread.last)

    def _last_end(self) -> int:
        last = self._threads[MAIN].last
        end = self._times[last].end if last else None
        return 0 if end is None else int(end.max())

    def _end(self, collective: Collective, now: int) -> None:
        self._times[collective].end = np.full_like(self._origin, now)

    def _set_speed(self, now: int) -> None:
        """Compute runs at another speed from now on: what is not over yet is done again."""
        speed = 1.0 / (1.0 + self._transfers.slowdown)
        if speed == self._clock.speed:
            return
        self._tentative = [operation for operation in self._tentative if self._beyond(operation, now)]
        starts = [int(self._times[operation].start.min()) for operation in self._tentative]
        self._clock.change(now, speed, min(starts, default=now))
        for operation in self._tentative:
            self._evaluate(operation)

    def _beyond(self, operation: Operation, now: int) -> bool:
        end = self._times[operation].end
        return end is None or int(end.max()) > now

    def _advance(self) -> None:
        """Evaluates whatever follows from what is known."""
        going = True
        while going:
            going = False
            for thread in list(self._threads.values()):
                going = self._go_on(thread) or going

    def _go_on(self, thread: _Thread) -> bool:
        """As far as it gets; whether it got any further."""
        further = False
        while self._refill(thread) or self._ready(thread):
            further = True
            while self._ready(thread):
                self._take(thread)
        return further

    def _ready(self, thread: _Thread) -> bool:
        return bool(thread.queue) and self._known(thread.last) and all(map(self._known, thread.queue[0].after))

    def _take(self, thread: _Thread) -> None:
        operation = thread.queue.popleft()
        self._follows[operation] = operation.after if thread.last is None else (thread.last, *operation.after)
        thread.last = operation
        thread.done.append(operation)
        self._evaluate(operation)
        self._tentative.append(operation)
        if isinstance(operation, Collective):
            self._waiting[operation.thread] = operation

    def _evaluate(self, operation: Operation) -> None:
        ends = [self._times[earlier].end for earlier in self._follows[operation]]
        start = functools.reduce(np.maximum, [end for end in ends if end is not None], self._origin)
        self._times[operation] = Times(start, self._finish(operation, start))

    def _finish(self, operation: Operation, start: Int64) -> Int64 | None:
        if isinstance(operation, Collective):
            return None
        if not isinstance(operation, Work | Pause):
            return start
        ns = self._durations[operation]
        is_compute = isinstance(operation, Work) and operation.label == "compute" and operation.thread == MAIN
        return self._clock.finish(start, ns) if is_compute else start + ns

    def _refill(self, thread: _Thread) -> bool:
        """Takes the next step when the main thread is through with all others, and the next round of a loop; whether
        there was one."""
        if thread.queue:
            return False
        if thread.loop is not None:
            return self._known(thread.last) and self._next_round(thread, thread.loop)
        if thread is not self._threads[MAIN] or self._written_out:
            return False
        step = next(self._steps, None)
        self._written_out = step is None
        for written in step or ():
            self._queue(written, self._random)
        return step is not None

    def _queue(self, written: Operation | Loop, random: np.random.Generator) -> None:
        if isinstance(written, Loop):
            self._threads.setdefault(written.lane, _Thread()).loop = written
            return
        self._threads.setdefault(written.thread, _Thread()).queue.append(written)
        if isinstance(written, Work):
            # Drawn as it is written, so that a piece of work takes as long whatever else is going on.
            self._durations[written] = self._machine.durations(written.ns, random)
        elif isinstance(written, Pause):
            self._durations[written] = written.ns

    def _next_round(self, thread: _Thread, loop: Loop) -> bool:
        took = None
        if thread.round:
            first = next(operation for operation in thread.round if not isinstance(operation, Pause))
            begun, ended = self._times[first].start, self._times[thread.round[-1]].end
            assert ended is not None
            took = ended - begun
        thread.round = list(loop.next_round(took))
        if not any(isinstance(operation, Collective) for operation in thread.round):
            raise FsbenchError(f"the loop on lane {loop.lane} has no collective: its rounds would never end")
        for operation in thread.round:
            self._queue(operation, self._random_of_loops)
        return True

"""The worker threads of a rank: they train without locks over one copy of its dense parameters (Hogwild).

Each has a model of its own whose parameters lie where the rank's do, gradients and an optimizer of its own, batches
that no other worker loads, and tables through lanes of its own. What one writes another may overwrite; nobody waits,
but for a sync that wants all to stand still, and only between two steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

import torch

from fsbench.axes import DenseSync, TargetCounts
from fsbench.errors import WorkerFailed

if TYPE_CHECKING:
    from fsbench.train.driver import Driver
    from fsbench.train.lanes import Lane
    from fsbench.train.trainer import Trainer


class Turns:
    """One worker at a time, between two of its steps, has its turn: it speaks to the rank's sync strategy."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._training = 0
        self._taken = False
        self._stands_for: Lane | None = None

    def begin(self, workers: int) -> None:
        """Before their threads start: so many are about to train."""
        self._training = workers

    def end(self) -> None:
        """One has trained its last step, or failed."""
        with self._changed:
            self._training -= 1
            self._changed.notify_all()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Inside, the caller does not train and nobody else has a turn."""
        with self._changed:
            self._training -= 1
            self._changed.notify_all()
            while self._taken:
                self._wait()
            self._taken = True
        try:
            yield
        finally:
            with self._changed:
                self._taken = False
                self._training += 1
                self._changed.notify_all()

    @contextmanager
    def standstill(self, lane: Lane) -> Iterator[None]:
        """See `RankContext.standstill`. Inside a turn."""
        with self._changed:
            self._stands_for = lane
            self._changed.notify_all()  # who waits for a turn already has to know what for
            while self._training:
                self._wait()
        try:
            yield
        finally:
            self._stands_for = None

    def _wait(self) -> None:
        if lane := self._stands_for:
            with lane.timeline.wait(lane.name):
                self._changed.wait()
        else:
            self._changed.wait()


class WorkerSync(DenseSync):
    """One worker's side of its rank's sync strategy, as `DenseSync.hogwild` has it."""

    needs_totals = False

    def __init__(self, whole: DenseSync, turns: Turns) -> None:
        super().__init__()
        self.exact = whole.exact
        self._whole, self._turns = whole, turns

    def attach(self, module: torch.nn.Module) -> None:
        """Gives the module gradients of its own."""
        parameters = [p for p in module.parameters() if p.requires_grad]
        self._gradients = torch.cat([torch.zeros_like(p).flatten() for p in parameters] or [torch.empty(0)])
        for parameter, own in zip(parameters, self._gradients.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = own.view_as(parameter)

    def after_backward(self, step: int, counts: TargetCounts) -> None:
        self._step, self._counts = step, counts

    def before_step(self) -> None:
        self._gradients.div_(max(1, self._counts.local))

    def after_step(self) -> None:
        with self._turns.turn():
            self._whole.after_backward(self._step, self._counts)
            self._whole.after_step()

    def flush(self) -> None:
        """The rank's is flushed when all workers have come here (`Crew.run`)."""

    def replicas(self) -> Mapping[str, Mapping[str, torch.Tensor]]:
        return self._whole.replicas()


def share_parameters(replica: torch.nn.Module, model: torch.nn.Module) -> None:
    """Puts the parameters of `replica` where those of `model` lie. Buffers stay its own. Autograd does not see what one
    of the two writes: the other may be between forward and backward."""
    for own, shared in zip(replica.parameters(), model.parameters(), strict=True):
        own.data = shared.data


_Ended = tuple[int, BaseException | None]
"""A worker that no longer trains, and what it raised."""


class _Stopped(Exception):
    """Another worker has failed."""


class Crew:
    """`members`: by worker, what its driver drives; the first has the rank's own model."""

    def __init__(self, members: Sequence[Trainer], sync: DenseSync, turns: Turns) -> None:
        self.members = members
        self._sync = sync
        self._turns = turns
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._torch_threads = torch.get_num_threads()

    def run(self, drivers: Sequence[Driver], before_step: Callable[[int], None]) -> None:
        """Trains all steps of all drivers, by a thread each, then ends what runs in the background.

        `before_step`: told how many steps all of them have trained, by their threads.

        Raises:
            WorkerFailed: as soon as one raises; the others may still be training (see `close`).
        """
        first, ended = sum(driver.step for driver in drivers), SimpleQueue[_Ended]()

        def go_on(step: int) -> None:
            if self._stop.is_set():
                raise _Stopped
            before_step(sum(driver.step for driver in drivers) - first)

        self._turns.begin(len(drivers))
        for worker, driver in enumerate(drivers):
            work = partial(self._work, worker, driver, go_on, ended)
            self._threads.append(threading.Thread(target=work, name=f"worker-{worker}", daemon=True))
        for thread in self._threads:
            thread.start()
        for _ in drivers:
            worker, error = ended.get()
            if error is not None:
                raise WorkerFailed(worker, error) from error
        self._join()
        self._sync.flush()

    def _work(self, worker: int, driver: Driver, go_on: Callable[[int], None], ended: SimpleQueue[_Ended]) -> None:
        """On its thread."""
        error: BaseException | None = None
        try:
            torch.set_num_threads(self._torch_threads)
            driver.trainer.context.timeline.adopt()
            driver.run(go_on)
        except _Stopped:
            pass
        except BaseException as raised:
            error = raised
        self._turns.end()
        ended.put((worker, error))

    def close(self) -> None:
        """Lets every worker finish its step, and joins its thread."""
        self._stop.set()
        self._join()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()
        self._threads = []

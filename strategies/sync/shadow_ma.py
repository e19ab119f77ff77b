"""Model averaging by a background thread, in the manner of ShadowSync (arXiv 2003.03477)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fsbench.axes import Handle, LaneSpec, Sync, TargetCounts
from fsbench_strategies.sync.local_steps import LocalSteps, check_share

if TYPE_CHECKING:
    import torch

    from fsbench.sim.contract import Stage, SyncPlan
    from fsbench_strategies.sync.averaging import Round

SHADOW = LaneSpec("shadow", "dense", host=True)


class ShadowMA(LocalSteps):
    """Averages the dense parameters over ranks in the background, again and again; training never waits.

    A loop on a lane of its own: snapshot, all-reduce, write-back, pause. It starts with the first step and ends in
    `flush`, by a vote that travels in the payload: a rank that has finished stays in the sum, inactive, until all want
    to stop, so that ranks may take different numbers of steps. Optimizer state and module buffers stay local.
    """

    @dataclass(frozen=True)
    class Options:
        """`alpha`: how far a replica moves to the mean, in (0, 1]. `write_back`: `pull` moves it there from where it is
        by then, `delta` by what the mean and its snapshot differ. `min_interval`: seconds between two rounds, at least.
        `duty`: share of one core, in (0, 1], that a rank's rounds may take, gloo's threads included; 1 is no limit."""

        alpha: float = 0.5
        write_back: Literal["pull", "delta"] = "pull"
        min_interval: float = 0.0
        duty: float = 0.05

        def __post_init__(self) -> None:
            check_share("alpha", self.alpha)
            check_share("duty", self.duty)
            if not 0 <= self.min_interval < float("inf"):
                raise ValueError(f"min_interval is {self.min_interval}, expected 0 seconds or more")

    options: Options
    uses = frozenset({"collectives"})
    lanes = (SHADOW,)

    def attach(self, module: torch.nn.Module) -> None:
        super().attach(module)
        self._lane = self.context.lanes[SHADOW.name]
        self._syncs: list[Sync] = []
        self._loop: Handle[None] | None = None
        self._stop = threading.Event()
        self._failed = threading.Event()
        self._cpu_s = self._wall_s = 0.0  # of the last round
        self._total_cpu_s = 0.0

    def requirements(self) -> str | None:
        from fsbench.collect.cpu import cpu_ns

        if self.options.duty < 1 and cpu_ns(()) is None:
            return "duty needs the CPU clocks of threads, which this system does not have; set duty=1"
        return None

    def after_backward(self, step: int, counts: TargetCounts) -> None:
        super().after_backward(step, counts)
        if self._loop is None:
            self._begin()
        elif self._failed.is_set():
            self._end()  # raises what failed

    def _begin(self) -> None:
        self._stop.clear()
        self._loop = self._lane.submit(self._run, kind="dense")

    def _end(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            self._stop.set()
            loop.wait()

    def _run(self) -> None:
        """On the lane's thread, where the operations that it submits run at once."""
        from fsbench_strategies.sync.averaging import Round

        try:
            with _side_stream(self.flat.values):
                average = Round(self.flat.values, self.context.rank, self.context.ranks)
                while not self._all_stop(average):
                    self._stop.wait(self._pause(average))
        except BaseException:
            self._failed.set()
            raise

    def _all_stop(self, average: Round) -> bool:
        """One round; whether it was the last."""
        from fsbench_strategies.sync.averaging import SPREAD_EVERY

        cpu, stop = self._lane.cpu_ns() or 0, self._stop.is_set()
        measured = len(self._syncs) % SPREAD_EVERY == 0
        keep = measured or self.options.write_back == "delta"
        payload = average.fill(active=not stop, wants_stop=stop, notes=(self._cpu_s, self._wall_s), keep=keep)
        begun = time.monotonic()
        self.context.collectives.all_reduce(self._lane, payload, kind="dense").wait()
        if average.all_want_stop:
            return True
        self._syncs.append(Sync(self.steps, time.monotonic_ns(), average.spread() if measured else None))
        average.take(self.options.alpha, self.options.write_back)
        self._wall_s = time.monotonic() - begun
        self._cpu_s = ((self._lane.cpu_ns() or 0) - cpu) * 1e-9
        self._total_cpu_s += self._cpu_s
        return False

    def _pause(self, average: Round) -> float:
        """Seconds; the same on every rank, from what the round before cost them all, as they told each other.

        A period is the CPU time of the rank that spent most, over the duty. The round itself is part of it, as long as
        it took the rank that came last to it: the others' time contains that rank's pause.
        """
        cpu_s, wall_s = average.notes[:, 0].max().item(), average.notes[:, 1].min().item()
        throttle = cpu_s / self.options.duty - wall_s if self.options.duty < 1 else 0.0
        return max(self.options.min_interval, throttle, 0.0)

    def plan(self, stage: Stage) -> SyncPlan:
        from fsbench_strategies.sync.plans import Period, ShadowMAPlan

        return ShadowMAPlan(stage, SHADOW, Period(self.options.min_interval * 1e9, self.options.duty))

    def flush(self) -> None:
        if self._loop is None:
            self._begin()  # without a step since the last flush: the others need this rank's vote all the same
        self._end()

    def syncs(self) -> Sequence[Sync]:
        return tuple(self._syncs)

    def evidence(self) -> Mapping[str, Any]:
        return {**super().evidence(), "cpu_s": self._total_cpu_s}

    def close(self) -> None:
        # After a failure: what the background raises then is no news.
        with contextlib.suppress(Exception):
            self._end()


@contextlib.contextmanager
def _side_stream(values: torch.Tensor) -> Iterator[None]:
    """On a GPU the thread's copies run beside training, on a stream of their own."""
    import torch

    if not values.is_cuda:
        yield
        return
    with torch.cuda.stream(torch.cuda.Stream(values.device)):
        yield

"""Syncs in the background, in the manner of ShadowSync (Zheng et al., arXiv 2003.03477)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fsbench.axes import Handle, TargetCounts
from fsbench_strategies.sync.checks import check_share
from fsbench_strategies.sync.exchange import FREE, Cost
from fsbench_strategies.sync.synced import Synced

if TYPE_CHECKING:
    import torch

    from fsbench_strategies.sync.replica import Replica


class Shadow(Synced):
    """Rounds one after another beside training, which never waits.

    The loop starts with the first step and ends in `flush`. Ranks may take different numbers of steps.
    """

    @dataclass(frozen=True)
    class Options:
        """`alpha`: how far a replica moves to the target, in (0, 1]. `write_back`: `pull` moves it there from where it
        is by then, `delta` by what the target and its snapshot differ. `min_interval`: seconds between two rounds, at
        least. `duty`: share of one core, in (0, 1], that a rank's rounds may take, gloo's threads included; 1 is no
        limit."""

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

    def requirements(self) -> str | None:
        from fsbench.collect.cpu import cpu_ns

        if self.options.duty < 1 and cpu_ns(()) is None:
            return "duty needs the CPU clocks of threads, which this system does not have; set duty=1"
        return None

    def open_replica(self) -> Replica:
        from fsbench_strategies.sync.replica import Replica

        return Replica(self.flat.values, self.options.alpha, self.options.write_back)

    def attach(self, module: torch.nn.Module) -> None:
        super().attach(module)
        self._loop: Handle[None] | None = None
        self._stop = threading.Event()
        self._failed = threading.Event()
        self._total_cpu_s = 0.0

    def after_backward(self, step: int, counts: TargetCounts) -> None:
        super().after_backward(step, counts)
        if self._loop is None:
            self._stop.clear()
            self._begin()
        elif self._failed.is_set():
            self._end()  # raises what failed

    def begin_flush(self) -> None:
        self._stop.set()
        if self._loop is None:
            self._begin()  # without a step since the last flush: other ranks may need this one's word all the same

    def flush(self) -> None:
        self.begin_flush()
        self._end()

    def _begin(self) -> None:
        self._loop = self.exchange.lanes[0].submit(self._run, kind="dense")

    def _end(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            self._stop.set()
            loop.wait()

    def _run(self) -> None:
        """On the lane's thread, where the operations that it submits run at once."""
        cost = FREE
        try:
            with _side_stream(self.flat.values):
                cpu, begun = self._cpu_s(), time.monotonic()
                while self.round(stopping=self._stop.is_set(), cost=cost):
                    cost = Cost(self._cpu_s() - cpu, time.monotonic() - begun)
                    self._total_cpu_s += cost.cpu_s
                    self._stop.wait(self._pause())
                    cpu, begun = self._cpu_s(), time.monotonic()
        except BaseException:
            self._failed.set()
            raise

    def _cpu_s(self) -> float:
        return sum(lane.cpu_ns() or 0 for lane in self.exchange.lanes) * 1e-9

    def _pause(self) -> float:
        """Seconds. A period is the CPU time of a round over the duty; the round itself is part of it."""
        cost = self.exchange.cost
        throttle = cost.cpu_s / self.options.duty - cost.wall_s if self.options.duty < 1 else 0.0
        return max(self.options.min_interval, throttle, 0.0)

    def evidence(self) -> Mapping[str, Any]:
        return {**super().evidence(), "cpu_s": self._total_cpu_s}

    def close(self) -> None:
        # After a failure: what the background raises then is no news.
        with contextlib.suppress(Exception):
            self._end()


@contextlib.contextmanager
def _side_stream(values: torch.Tensor) -> Iterator[None]:
    """On a GPU the thread's copies run beside training, on a stream of their own; at the end they are done."""
    import torch

    if not values.is_cuda:
        yield
        return
    stream = torch.cuda.Stream(values.device)
    stream.wait_stream(torch.cuda.default_stream(values.device))  # what was loaded may still be on its way
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()

"""A pool of real ranks for tests: importing torch and starting processes costs seconds, a task milliseconds.

A task is a function of an importable module, called as `function(rank, ranks, *args)` with torch.distributed
initialised on fsbench's recorded gloo. A task that fails or exceeds its limit costs the pool: its processes are killed,
and the next task starts fresh ones.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fsbench.errors import UserError
from fsbench.launch.system import kill_run
from fsbench.testing.tasks import READY, START_S, Ended, Failed, Hung, Task, serve

SIZE = 3
GRACE_S = 5.0
"""How long after the limit a rank may take to say what it is at."""


class TaskFailed(AssertionError):
    """A task raised on a rank, or did not end in time. `line`: the same without a traceback. `unsupported`: the
    strategy said that it cannot run here."""

    def __init__(self, message: str, line: str, *, unsupported: bool = False) -> None:
        super().__init__(message)
        self.line = line
        self.unsupported = unsupported


class RankPool:
    """Up to `size` ranks, in processes that the first task starts."""

    def __init__(self, size: int = SIZE) -> None:
        self._size = size
        self._context = multiprocessing.get_context("spawn")
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        self._folder = Path(tempfile.mkdtemp(prefix=f"fsbench-{os.getpid()}-pool-"))
        self._store: Any = None
        self._tasks = 0

    def run(self, function: Callable[..., Any], ranks: int, *args: Any, limit_s: float = 40.0) -> list[Any]:
        """Results by rank.

        Raises:
            TaskFailed: the first rank that failed, and why; or what each rank was at when the limit came.
        """
        return [ended.result for ended in self.run_watched(function, ranks, *args, limit_s=limit_s)]

    def run_watched(self, function: Callable[..., Any], ranks: int, *args: Any, limit_s: float = 40.0) -> list[Ended]:
        """The same, with what the task left behind on each rank."""
        try:
            self._start()
            self._tasks += 1
            for pipe in self._pipes[:ranks]:
                pipe.send(Task(function, ranks, f"task-{self._tasks}", args, limit_s, tuple(sys.path)))
            return self._collect(ranks, limit_s)
        except BaseException:
            self.close_processes()
            raise

    def _collect(self, ranks: int, limit_s: float) -> list[Ended]:
        ended: dict[int, Ended] = {}
        hung: dict[int, str] = {}
        waiting: dict[Any, int] = {pipe: rank for rank, pipe in enumerate(self._pipes[:ranks])}
        deadline = time.monotonic() + limit_s + GRACE_S
        while waiting:
            ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            answers = {waiting.pop(pipe): self._receive(pipe) for pipe in ready}
            failures = {rank: answer for rank, answer in answers.items() if isinstance(answer, Failed)}
            if failures:
                rank, first = min(failures.items(), key=lambda item: item[1].at_ns)
                who = f"rank {rank} of {ranks}: "
                raise TaskFailed(who + first.message, who + first.line, unsupported=first.unsupported)
            ended |= {rank: answer for rank, answer in answers.items() if isinstance(answer, Ended)}
            hung |= {rank: answer.at for rank, answer in answers.items() if isinstance(answer, Hung)}
            if not ready:
                hung |= dict.fromkeys(waiting.values(), "no answer")
                break
        if hung:
            report = f"not done after {limit_s:g} s: " + "; ".join(_each(ranks, hung))
            raise TaskFailed(report, report)
        return [ended[rank] for rank in range(ranks)]

    def _receive(self, pipe: Any) -> Any:
        try:
            answer = pipe.recv()
        except (EOFError, OSError):
            process = self._processes[self._pipes.index(pipe)]
            process.join(GRACE_S)
            death = f"the process died, {_exit(process.exitcode)}"
            return Failed(death, death, False, time.monotonic_ns())
        return answer

    def _start(self) -> None:
        if self._processes:
            return
        import torch.distributed as dist

        # Ranks meet here, in memory: with a store of files every process group would cost a quarter of a second.
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for rank in range(self._size):
            ours, theirs = self._context.Pipe()
            where = (theirs, rank, str(self._folder), self._store.port)
            process = self._context.Process(target=serve, args=where, name=f"rank-{rank}")
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        for pipe in self._pipes:
            # The limit of the first task is not to be spent on imports.
            answer = self._receive(pipe) if pipe.poll(START_S) else f"no answer after {START_S:g} s"
            if answer != READY:
                report = f"a rank did not start: {answer}"
                raise TaskFailed(report, report)

    def close_processes(self) -> None:
        """Kills the ranks, and whatever they started."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                # Ranks lead process groups of their own; one that has not got so far yet has no children.
                os.killpg(process.pid or 0, signal.SIGKILL)
            process.kill()
        for process in self._processes:
            process.join()
        kill_run(self._folder)
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes, self._store = [], [], None

    def close(self) -> None:
        self.close_processes()
        shutil.rmtree(self._folder, ignore_errors=True)


@functools.cache
def shared_pool() -> RankPool:
    """The pool of this process; it is closed when the process ends.

    Raises:
        UserError: torch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise UserError("ranks need PyTorch, which is not installed; pip install 'fsbench[cpu]'")
    pool = RankPool()
    atexit.register(pool.close)
    return pool


def _each(ranks: int, hung: dict[int, str]) -> list[str]:
    return [f"rank {rank}: {hung.get(rank, 'done')}" for rank in range(ranks)]


def _exit(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"

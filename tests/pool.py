"""One pool of ranks for the whole test run: importing torch and starting processes costs seconds, a task milliseconds.

A task is a function of a module under tests/, called as `function(rank, ranks, *args)` with torch.distributed
initialised on fsbench's recorded gloo. A task that fails or exceeds its limit costs the pool: it is killed, and the
next task starts a fresh one.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import tempfile
import time
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path

SIZE = 3


class TaskFailed(AssertionError):
    """A task raised on a rank, or did not end in time."""


class RankPool:
    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._processes: list = []
        self._pipes: list[Connection] = []
        self._folder = tempfile.TemporaryDirectory(prefix="fsbench-pool-")
        self._task = 0

    def run(self, function, ranks: int, *args, limit_s: float = 40.0) -> list:
        """Results by rank."""
        self._start()
        self._task += 1
        store = Path(self._folder.name, f"store-{self._task}")
        for pipe in self._pipes[:ranks]:
            pipe.send((function, ranks, str(store), args, limit_s))
        results: dict[int, object] = {}
        deadline = time.monotonic() + limit_s
        waiting = {pipe: rank for rank, pipe in enumerate(self._pipes[:ranks])}
        while waiting:
            ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                self.close_processes()
                raise TaskFailed(f"ranks {sorted(waiting.values())} of {ranks} did not end within {limit_s} s")
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    failure, results[rank] = pipe.recv()
                except EOFError:
                    failure = "the process died"
                if failure:
                    self.close_processes()
                    raise TaskFailed(f"rank {rank} of {ranks}: {failure}")
        return [results[rank] for rank in range(ranks)]

    def _start(self) -> None:
        if self._processes:
            return
        for rank in range(SIZE):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs, rank), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def close_processes(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []

    def close(self) -> None:
        self.close_processes()
        self._folder.cleanup()


def _serve(pipe: Connection, rank: int) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    from fsbench.collect import recorder

    torch.set_num_threads(1)
    recorder.register_backends()
    while True:
        try:
            function, ranks, store, args, limit_s = pipe.recv()
        except EOFError:
            return
        try:
            dist.init_process_group(
                recorder.GLOO,
                init_method=f"file://{store}",
                rank=rank,
                world_size=ranks,
                timeout=timedelta(seconds=limit_s),
            )
            result = function(rank, ranks, *args)
            dist.destroy_process_group()
            # Trainers hold themselves in cycles, and each has a dozen gloo threads: they would pile up.
            gc.collect()
        except BaseException:
            pipe.send((traceback.format_exc(), None))
            return
        pipe.send((None, result))

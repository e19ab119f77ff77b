"""What a rank of the pool does: waits for a task, runs it in a process group of its own, tells how it ended."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fsbench.axes import DEFAULTS
from fsbench.errors import Unsupported
from fsbench.launch.process import die_with_parent
from fsbench.testing.footprint import Footprint, left_behind
from fsbench.testing.whereabouts import in_a_line, note, whereabouts

READY = "ready"
"""What a rank says first."""
START_S = 120.0
"""When it must have said so."""


@dataclass(frozen=True)
class Task:
    """`function(rank, ranks, *args)`, which may take `limit_s`. `name`: no other task of these ranks has it. `path`:
    where modules are imported from."""

    function: Callable[..., Any]
    ranks: int
    name: str
    args: tuple[Any, ...]
    limit_s: float
    path: tuple[str, ...]


@dataclass(frozen=True)
class Ended:
    """A task's result on one rank. `left`: threads, processes, sockets and files that it left, in words."""

    result: Any
    left: tuple[str, ...]


@dataclass(frozen=True)
class Failed:
    """Why there is no result: a traceback, and the same in a line; or how the process died. `unsupported`: the strategy
    said that it cannot run here."""

    message: str
    line: str
    unsupported: bool
    at_ns: int


@dataclass(frozen=True)
class Hung:
    """The limit is reached. `at`: what the rank's threads are at."""

    at: str


def serve(pipe: Connection, rank: int, folder: str, port: int) -> None:
    """Runs tasks until the pipe closes or one fails.

    Args:
        folder: where the rank's output and temporary files go.
        port: of the store at which the ranks meet.
    """
    os.setsid()
    die_with_parent()
    own = _settle(Path(folder, f"rank-{rank}-{os.getpid()}"))
    import torch
    import torch.distributed as dist

    # Defaults of their functions keep the process group that is the default one when they are first imported, for good.
    import torch.distributed.nn.functional
    import torch.distributed.optim

    from fsbench.collect import recorder

    torch.set_num_threads(1)
    recorder.register_backends()
    store = dist.TCPStore("127.0.0.1", port)
    _warm_up(dist.PrefixStore(f"alone-{rank}", store))
    pipe.send(READY)
    while True:
        try:
            pipe.send(_next(pipe, rank, own, store))
        except EOFError:
            return
        except BaseException as error:
            unsupported = isinstance(error, Unsupported)
            pipe.send(Failed(traceback.format_exc(), in_a_line(error), unsupported, time.monotonic_ns()))
            # At once: after a failure threads may be stuck in exchanges that will never end.
            os._exit(1)


def _next(pipe: Connection, rank: int, folder: Path, store: Any) -> Ended:
    """Waits for a task and runs it. If it is not done at the limit, another thread says where it is."""
    task: Task = pipe.recv()
    sys.path[:] = task.path
    note("")
    before = Footprint.of_this_process(folder)
    watchdog = threading.Timer(task.limit_s, lambda: pipe.send(Hung(whereabouts())))
    watchdog.daemon = True
    watchdog.start()
    result = _in_a_group(task, rank, store)
    watchdog.cancel()
    watchdog.join()
    return Ended(result, left_behind(before, folder))


def _in_a_group(task: Task, rank: int, store: Any) -> Any:
    import torch.distributed as dist

    from fsbench.collect import recorder

    dist.init_process_group(
        recorder.GLOO,
        store=dist.PrefixStore(task.name, store),
        rank=rank,
        world_size=task.ranks,
        timeout=timedelta(seconds=task.limit_s),
    )
    result = task.function(rank, task.ranks, *task.args)
    dist.destroy_process_group()
    # Trainers hold themselves in cycles, and each has a dozen gloo threads: they would pile up.
    gc.collect()
    return result


def _warm_up(store: Any) -> None:
    """Trains a little, alone: torch and gloo start threads and open files that stay, and no task has left those."""
    from fsbench.testing.trial import Trial, train

    alone = Trial("sharding", DEFAULTS["sharding"])
    _in_a_group(Task(train, 1, "warm-up", (alone,), START_S, ()), 0, store)
    # What is imported stays: to look through it again after every task takes longer than the task.
    gc.freeze()


def _settle(folder: Path) -> Path:
    """An empty folder to work in, which is the one for temporary files too; output goes to a file beside it."""
    scratch = folder / "scratch"
    scratch.mkdir(parents=True)
    os.chdir(scratch)
    os.environ.update({"TMPDIR": str(scratch), "GLOO_SOCKET_IFNAME": "lo"})
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    return scratch

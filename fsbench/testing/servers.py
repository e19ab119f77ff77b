"""Server processes for checks: threads of rank 0, which know no more of the ranks than a process would."""

from __future__ import annotations

import _thread
import contextlib
import threading
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from fsbench.errors import FsbenchError
from fsbench.roles import ServerProcess
from fsbench.testing.whereabouts import in_a_line
from fsbench.train.channels import meeting_point
from fsbench.train.serving import serve_ranks
from fsbench.train.trainer import Strategies
from fsbench.workload import Workload


@contextlib.contextmanager
def served(
    strategies: Strategies,
    workload: Workload,
    *,
    rank: int,
    ranks: int,
    seed: int,
    timeout: timedelta,
    workers: int = 1,
) -> Iterator[Any]:
    """Inside the context there are the servers that the strategies ask for; it is the store at which to meet them.
    Collective. `workers`: of each rank.

    Raises:
        FsbenchError: on rank 0, what a server raised, rather than what came of that there.
    """
    if not strategies.servers:
        yield None
        return
    name = _agreed_name()
    errors: dict[str, BaseException] = {}

    def serve(process: ServerProcess, number: int) -> None:
        strategy, store = getattr(strategies, process.axis), dist.PrefixStore(name, meeting_point().clone())
        how: dict[str, Any] = {"ranks": ranks, "workers": workers, "number": number, "seed": seed, "timeout": timeout}
        try:
            serve_ranks(strategy, process, workload, store=store, **how)
        except BaseException as error:
            errors[str(process)] = error
            _thread.interrupt_main()  # which may wait for an answer

    threads = [
        threading.Thread(target=serve, args=(process, number), name=str(process), daemon=True)
        for number, process in enumerate(strategies.servers, start=ranks)
        if rank == 0
    ]
    for thread in threads:
        thread.start()
    try:
        yield dist.PrefixStore(name, meeting_point())
        for thread in threads:
            thread.join()
    except BaseException:
        for server, error in errors.items():
            raise FsbenchError(f"{server}: {in_a_line(error)}") from error
        raise


def _agreed_name() -> str:
    """Of this context among all in which the same ranks meet at the same store. Collective."""
    told = [uuid.uuid4().hex]
    dist.broadcast_object_list(told, src=0)
    return told[0]

"""What a server process does: it makes what its strategy serves, and answers every rank until that has ended."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from datetime import timedelta
from typing import Any

import torch

from fsbench.axes import Server, ServerContext, Strategy
from fsbench.launch.activity import Activity
from fsbench.roles import ServerProcess
from fsbench.train.channels import Channel, Pairs
from fsbench.workload import Workload

_POLL_S = 0.2


def serve_ranks(
    strategy: Strategy,
    process: ServerProcess,
    workload: Workload,
    *,
    ranks: int,
    workers: int = 1,
    number: int,
    seed: int,
    store: Any,
    timeout: timedelta,
    activity: Activity | None = None,
    on_poll: Callable[[int], None] = lambda answered: None,
) -> None:
    """Returns when every rank has ended. Raises what an answer raised; threads may then be left in an exchange.

    Args:
        workload: prepared.
        workers: of each rank.
        number: of this process among all; those of the ranks come first.
        store: where all processes meet.
        on_poll: told how many requests were answered so far, when all ranks have come and several times a second.
    """
    clients = ranks * (workers if process.of_workers else 1)
    context = ServerContext(
        process.role,
        process.place,
        process.count,
        clients,
        dtype=getattr(torch, workload.dtype_name),
        seed=seed,
        tables=workload.tables(),
    )
    server = strategy.serve(context)
    channels = Pairs(store, ranks, timeout, activity, workers).channels(process, number)
    answered = [0] * clients
    on_poll(0)
    threads = ThreadPoolExecutor(clients, thread_name_prefix=str(process))
    desks = [threads.submit(_attend, server, rank, channel, answered) for rank, channel in enumerate(channels)]
    open_desks: set[Future[None]] = set(desks)
    while open_desks:
        done, open_desks = wait(open_desks, _POLL_S, FIRST_EXCEPTION)
        for desk in done:
            desk.result()
        on_poll(sum(answered))
    threads.shutdown()


def _attend(server: Server, rank: int, channel: Channel, answered: list[int]) -> None:
    while (request := channel.next_request()) is not None:
        server.answer(rank, request, channel)
        answered[rank] += 1
        channel.log.clear()  # nobody asks for it, and it would grow with the run

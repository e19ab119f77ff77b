"""Rounds of dense synchronisation without processes, in an order that a test chooses.

Everything here is float64, so that what is exact on paper can be compared closely.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import settings

from fsbench_strategies.sync.averaging import Averaging
from fsbench_strategies.sync.central import CentralExchange, SyncServer
from fsbench_strategies.sync.replica import Replica
from fsbench_strategies.sync.rules import Mean

Learned = Sequence[torch.Tensor] | None
"""By rank, what training adds to the parameters between the snapshot and the write-back."""
few_examples = settings(max_examples=25)
"""Each takes threads through several rounds."""
_THREADS = ThreadPoolExecutor(8)


def replicas(ranks: int, seed: int = 0, numel: int = 50) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(numel, generator=generator, dtype=torch.float64) for _ in range(ranks)]


def copies(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [one.clone() for one in values]


def spread(values: Sequence[torch.Tensor]) -> torch.Tensor:
    """[ranks], the distance of each from the mean."""
    stacked = torch.stack(list(values))
    return (stacked - stacked.mean(0)).norm(dim=1)


class _Sum:
    """Collectives of threads: a lane is a rank's number."""

    def __init__(self, ranks: int) -> None:
        self._all = threading.Barrier(ranks)
        self._sent: list[Any] = [None] * ranks
        self.before_answer: Callable[[int], None] = lambda rank: None

    def all_reduce(self, lane: int, tensor: torch.Tensor, *, kind: str) -> Any:
        self._sent[lane] = tensor.clone()
        self._all.wait()
        tensor.copy_(torch.stack(self._sent).sum(0))
        self._all.wait()
        self.before_answer(lane)
        return SimpleNamespace(wait=lambda: tensor)


class Averages:
    """Ranks that average `values`, in place. `rule`: makes the rule of a rank, of its values."""

    def __init__(self, values, alpha=1.0, write_back="pull", rule=lambda values: Mean()) -> None:
        self.values = values
        self._sum = _Sum(len(values))
        self.rules = [rule(one) for one in values]
        self.exchanges = [
            Averaging(Replica(one, alpha, write_back), rule, self._sum, rank, rank, len(values))
            for rank, (one, rule) in enumerate(zip(values, self.rules, strict=True))
        ]

    def round(self, learned: Learned = None, **by_rank: Sequence[Any]) -> list[bool]:
        """One round over all ranks; whether it was one, by rank. `by_rank`: arguments of `meet`."""
        if learned is not None:
            self._sum.before_answer = lambda rank: self.values[rank].add_(learned[rank])
        calls = [{name: given[rank] for name, given in by_rank.items()} for rank in range(len(self.values))]
        met = list(_THREADS.map(lambda exchange, how: exchange.meet(**how), self.exchanges, calls))
        self._sum.before_answer = lambda rank: None
        return met


class _Wire:
    """A rank's end of a channel to a server that answers as soon as the rank listens, or its job is done."""

    def __init__(self, server: SyncServer) -> None:
        self._server = server
        self._asked: list[Sequence[int]] = []
        self._up: list[torch.Tensor] = []
        self._down: list[torch.Tensor] = []
        self.before_answer: Callable[[], None] = lambda: None

    def request(self, *numbers: int) -> None:
        self._asked.append(numbers)

    def send(self, tensor: torch.Tensor, *, kind: str) -> None:
        self._up.append(tensor.clone())

    def receive(self, shape: Sequence[int], dtype: torch.dtype, *, kind: str) -> torch.Tensor:
        self.settle()
        answer = self._down.pop(0)
        assert (answer.shape, answer.dtype) == (torch.Size(shape), dtype)
        self.before_answer()
        return answer

    def settle(self) -> None:
        """Lets the server answer what it was asked."""
        up = SimpleNamespace(receive=self._received, send=lambda tensor, *, kind: self._down.append(tensor.clone()))
        while self._asked:
            self._server.answer(0, self._asked.pop(0), up)

    def _received(self, shape: Sequence[int], dtype: torch.dtype, *, kind: str) -> torch.Tensor:
        sent = self._up.pop(0)
        assert (sent.shape, sent.dtype) == (torch.Size(shape), dtype)
        return sent


class _ServerLane:
    def __init__(self, server: SyncServer) -> None:
        self.channel = _Wire(server)

    def ask(self, job: Callable[[Any], Any], *, kind: str) -> Any:
        result = job(self.channel)
        self.channel.settle()
        return SimpleNamespace(wait=lambda: result)


class Elastics:
    """Ranks that meet a central copy on `servers`, each on its own; it starts as the first one's values."""

    def __init__(self, values, alpha=0.5, order="push-pull", write_back="pull", servers=1) -> None:
        self.values: list[torch.Tensor] = []
        self.exchanges: list[CentralExchange] = []
        self._how = alpha, write_back
        self._servers = [SyncServer(torch.float64, alpha, order) for _ in range(servers)]
        self._lanes: list[list[Any]] = []
        for one in values:
            self.join(one)

    def join(self, values: torch.Tensor) -> None:
        """One more rank."""
        self.values.append(values)
        self._lanes.append([_ServerLane(server) for server in self._servers])
        self.exchanges.append(CentralExchange(Replica(values, *self._how), self._lanes[-1]))

    @property
    def central(self) -> torch.Tensor:
        return self.exchanges[0].central()

    def round(self, learned: Learned = None) -> None:
        """One round of each rank, in their order."""
        for rank in range(len(self.values)):
            self.meet(rank, None if learned is None else learned[rank])

    def meet(self, rank: int, learned: torch.Tensor | None = None, **how: Any) -> bool:
        wire = self._lanes[rank][0].channel
        if learned is not None:
            wire.before_answer = lambda: self.values[rank].add_(learned)
        met = self.exchanges[rank].meet(**how)
        wire.before_answer = lambda: None
        return met

"""The central copy of elastic averaging: the server that holds a slice of it, and a rank's side."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch

from fsbench.axes import Handle, Server
from fsbench.train.channels import Channel, ServerLane
from fsbench_strategies.sync.exchange import FREE, Cost, Exchange
from fsbench_strategies.sync.replica import Replica

_START, _SYNC, _LOAD, _READ = range(4)
Order = Literal["push-pull", "symmetric"]


class SyncServer(Server):
    """A slice of the central copy. One request at a time changes it, for a new one: what is being sent stays as it is.

    It starts as the parameters of whoever comes first. Every rank sends its own, all of them equal before the first
    step, so that none waits for another here either.

    With c the copy and s what a rank sends, c moves to s by alpha, and the rank is told what to approach: in the order
    `push-pull` the c that came of it, which leaves (1 - alpha)^2 of what they differ; in the order `symmetric` (Zhang,
    Choromanska and LeCun 2015, EASGD) the c before, which leaves |1 - 2 alpha| and conserves their sum.
    """

    def __init__(self, dtype: torch.dtype, alpha: float, order: Order) -> None:
        self._dtype, self._alpha, self._order = dtype, alpha, order
        self._lock = threading.Lock()
        self._copy: torch.Tensor | None = None

    def answer(self, rank: int, request: Sequence[int], channel: Channel) -> None:
        code, numel = request  # `numel` values follow
        sent = channel.receive((numel,), self._dtype, kind="dense")
        with self._lock:
            answer = (self._start, self._sync, self._load, self._read)[code](sent)
        # Not under the lock: a rank that is slow to receive must not hold up the others.
        if answer is not None:
            channel.send(answer, kind="dense")

    def _start(self, initial: torch.Tensor) -> None:
        if self._copy is None:
            self._copy = initial

    def _sync(self, sent: torch.Tensor) -> torch.Tensor:
        assert self._copy is not None, "a rank starts before it syncs"
        before = self._copy
        self._copy = torch.lerp(before, sent, self._alpha)
        return before if self._order == "symmetric" else self._copy

    def _load(self, values: torch.Tensor) -> None:
        self._copy = values

    def _read(self, nothing: torch.Tensor) -> torch.Tensor:
        assert self._copy is not None, "a rank starts before it reads"
        return self._copy


class SyncClient:
    """A rank's side of one server. Requests are answered in order. Slices [numel] of one length, in host memory."""

    def __init__(self, lane: ServerLane, initial: torch.Tensor) -> None:
        self._lane, self._like = lane, initial
        self._lane.ask(partial(self._tell, _START, initial, "state"), kind="state").wait()

    def sync(self, values: torch.Tensor) -> Handle[torch.Tensor]:
        """Sends a slice of a replica, which must stay as it is until the answer comes: what to approach."""
        return self._lane.ask(partial(self._ask, _SYNC, values, "dense"), kind="dense")

    def read(self) -> torch.Tensor:
        return self._lane.ask(partial(self._ask, _READ, self._like[:0], "state"), kind="state").wait()

    def load(self, values: torch.Tensor) -> None:
        """Replaces the slice."""
        self._lane.ask(partial(self._tell, _LOAD, values, "state"), kind="state").wait()
        self.read()  # answered after that

    def _tell(self, code: int, values: torch.Tensor, kind: str, channel: Channel) -> None:
        channel.request(code, len(values))
        channel.send(values, kind=kind)

    def _ask(self, code: int, values: torch.Tensor, kind: str, channel: Channel) -> torch.Tensor:
        self._tell(code, values, kind, channel)
        return channel.receive(self._like.shape, self._like.dtype, kind=kind)


class CentralExchange(Exchange):
    """A replica meets the central copy, consecutive slices of which are on the servers, in the order of `lanes`."""

    def __init__(self, replica: Replica, lanes: Sequence[ServerLane]) -> None:
        super().__init__(lanes, has_central=True)
        values = replica.values
        self._replica = replica
        self._snapshot = torch.empty(len(values), dtype=values.dtype, pin_memory=values.is_cuda)
        self._snapshot.copy_(values)
        self._slices = self._snapshot.tensor_split(len(lanes))
        self._clients = [SyncClient(lane, part) for lane, part in zip(lanes, self._slices, strict=True)]

    def meet(self, *, measure: bool = False, stopping: bool = False, cost: Cost = FREE) -> bool:
        """No other rank has a part in it: a rank that is stopping has nothing to say."""
        self.cost = cost
        if stopping:
            return False
        self._replica.send(self._snapshot, keep=measure)
        # The first lane comes last: on its own thread, where a background loop runs, the answer is waited for at once.
        others = [client.sync(part) for client, part in zip(self._clients[1:], self._slices[1:], strict=True)]
        first = self._clients[0].sync(self._slices[0])
        target = torch.cat([answer.wait() for answer in (first, *others)])
        self.spread = self._replica.distance(target) if measure else None
        self._replica.approach(target)
        return True

    def central(self) -> torch.Tensor:
        return torch.cat([client.read() for client in self._clients])

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"central": self.central()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """From any number of servers."""
        for client, part in zip(self._clients, state["central"].cpu().tensor_split(len(self._clients)), strict=True):
            client.load(part)

"""What a rank and a table server say to each other: both ends."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial

import torch

from fsbench.axes import Handle, Server, ServerContext, TableSpec
from fsbench.train.channels import Channel, ServerLane
from fsbench.train.tables import RowPartition, TableShard, row_shapes

_PULL, _PUSH, _READ, _LOAD, _STALEST = range(5)


class TableServer(Server):
    """The rows of all tables that fall to one server. One request at a time touches them.

    It remembers which rows a rank has pulled until the rank pushes their gradients, in the same order.
    """

    def __init__(self, context: ServerContext) -> None:
        self._dtype = context.dtype
        self._shards = [
            TableShard(
                spec,
                RowPartition(spec.rows, context.count),
                context.place,
                context.seed,
                context.dtype,
                torch.device("cpu"),
            )
            for spec in context.tables
        ]
        self._lock = threading.Lock()
        self._updates = [0] * context.ranks
        self._pulled: list[deque[tuple[list[int], Sequence[torch.Tensor]]]] = [deque() for _ in range(context.ranks)]
        self._stalest = [0] * context.ranks

    def answer(self, rank: int, request: Sequence[int], channel: Channel) -> None:
        code, *numbers = request
        (self._pull, self._push, self._read, self._load, self._tell_stalest)[code](rank, channel, *numbers)

    def _pull(self, rank: int, channel: Channel, wanted: int) -> None:
        tables = len(self._shards)
        told = channel.receive((tables + wanted,), torch.int32, kind="ids")
        slots = told[tables:].long().split(told[:tables].tolist())
        with self._lock:
            rows = [shard.read(of_table).flatten() for shard, of_table in zip(self._shards, slots, strict=True)]
            self._pulled[rank].append((list(self._updates), slots))
        channel.send(torch.cat(rows), kind="rows")

    def _push(self, rank: int, channel: Channel, step: int, targets: int) -> None:
        seen, slots = self._pulled[rank].popleft()
        sizes = [len(of_table) * shard.spec.dim for shard, of_table in zip(self._shards, slots, strict=True)]
        flat = channel.receive((sum(sizes),), self._dtype, kind="gradients")
        with self._lock:
            lacking = (now - then for now, then in zip(self._updates, seen, strict=True))
            self._stalest[rank] = max(self._stalest[rank], *lacking)
            for shard, of_table, gradients in zip(self._shards, slots, flat.split(sizes), strict=True):
                shard.apply(of_table, gradients.view(-1, shard.spec.dim), step, scale=1.0 / max(1, targets))
            self._updates[rank] += 1

    def _read(self, rank: int, channel: Channel, table: int) -> None:
        with self._lock:
            tensors = [tensor.clone() for tensor in self._shards[table].tensors().values()]
        for tensor in tensors:
            channel.send(tensor, kind="state")

    def _load(self, rank: int, channel: Channel, table: int) -> None:
        tensors = self._shards[table].tensors()
        received = {name: channel.receive(tensor.shape, tensor.dtype, kind="state") for name, tensor in tensors.items()}
        with self._lock:
            for name, tensor in tensors.items():
                tensor.copy_(received[name])

    def _tell_stalest(self, rank: int, channel: Channel) -> None:
        channel.send(torch.tensor([self._stalest[rank]]), kind="state")


class TableClient:
    """A rank's side of one server. Requests are answered in order. Tensors in host memory, and `dtype`."""

    def __init__(
        self, lane: ServerLane, tables: Sequence[TableSpec], place: int, count: int, dtype: torch.dtype
    ) -> None:
        self._lane = lane
        self._tables = {spec.name: spec for spec in tables}
        self._places = {spec.name: number for number, spec in enumerate(tables)}
        self._rows = {spec.name: RowPartition(spec.rows, count).size(place) for spec in tables}
        self._dtype = dtype

    def pull(self, slots: Mapping[str, torch.Tensor]) -> Handle[torch.Tensor]:
        """Asks for rows by table, int32[u]: their values, the tables one after another, flat."""
        none = torch.empty(0, dtype=torch.int32)
        by_table = [slots.get(name, none) for name in self._tables]
        counts = torch.tensor([len(of_table) for of_table in by_table], dtype=torch.int32)
        values = sum(len(of_table) * self._tables[name].dim for name, of_table in slots.items())
        return self._lane.ask(partial(self._pull, torch.cat([counts, *by_table]), values), kind="rows")

    def _pull(self, told: torch.Tensor, values: int, channel: Channel) -> torch.Tensor:
        channel.request(_PULL, len(told) - len(self._tables))
        channel.send(told, kind="ids")
        return channel.receive((values,), self._dtype, kind="rows")

    def push(self, gradients: Mapping[str, torch.Tensor], step: int, targets: int) -> Handle[None]:
        """Sends the gradients [u, dim] of the earliest pulled rows that have not got theirs, by table; `step`, from 1.
        It is done when they are on their way."""
        none = torch.empty(0, dtype=self._dtype)
        flat = torch.cat([gradients.get(name, none).flatten() for name in self._tables])
        return self._lane.ask(partial(self._push, flat, step, targets), kind="gradients")

    def _push(self, flat: torch.Tensor, step: int, targets: int, channel: Channel) -> None:
        channel.request(_PUSH, step, targets)
        channel.send(flat, kind="gradients")

    def read(self, table: str) -> dict[str, torch.Tensor]:
        """The server's rows of a table and their optimizer state, by slot."""
        return self._lane.ask(partial(self._read, table), kind="state").wait()

    def _read(self, table: str, channel: Channel) -> dict[str, torch.Tensor]:
        channel.request(_READ, self._places[table])
        return {
            name: channel.receive((self._rows[table], *shape), self._dtype, kind="state")
            for name, shape in row_shapes(self._tables[table]).items()
        }

    def load(self, table: str, state: Mapping[str, torch.Tensor]) -> None:
        """Replaces them. `state`: of the table's optimizer."""
        self._lane.ask(partial(self._load, table, state), kind="state").wait()
        self.stalest()  # answered after that

    def _load(self, table: str, state: Mapping[str, torch.Tensor], channel: Channel) -> None:
        channel.request(_LOAD, self._places[table])
        for name in row_shapes(self._tables[table]):
            channel.send(state[name].to(self._dtype), kind="state")

    def stalest(self) -> int:
        """The most updates of any one rank that rows of this rank may have lacked when their gradients were applied;
        answered when all that was pushed before is in the tables."""
        return self._lane.ask(self._ask_stalest, kind="state").wait()

    def _ask_stalest(self, channel: Channel) -> int:
        channel.request(_STALEST)
        return int(channel.receive((1,), torch.int64, kind="state"))

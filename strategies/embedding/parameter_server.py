"""Tables on server processes, which every rank asks on its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from fsbench.axes import CONTROL, EmbeddingExchange, Handle, ServerContext, TableSpec, TargetCounts

if TYPE_CHECKING:
    import torch

    from fsbench.train.row_exchange import Route
    from fsbench_strategies.embedding.table_server import TableServer

ROLE = "table-server"


@dataclass
class _Pulled:
    """A batch on its way. By table, in the order of all tables: `routes`; `leaves`, its distinct rows [u, dim], once
    they are there. `answers`: by server, the rows of all tables in one, flat. `ahead`: pushes that the servers take
    before these rows are read."""

    routes: dict[str, Route]
    answers: list[Handle[torch.Tensor]]
    ahead: list[Handle[None]]
    leaves: dict[str, torch.Tensor] = field(default_factory=dict)


class ParameterServer(EmbeddingExchange):
    """Tables on server processes; every rank pulls rows and pushes gradients when it needs to, and waits for no other.

    What ShadowSync's trainers train against (Zheng et al., arXiv 2003.03477, the embedding parameter servers). A rank
    asks for each row of its batch once, and sends the sum of its gradients, divided by its own target count; a server
    applies what comes when it comes. So a row may lack updates of ranks that are under way with it, as many as they
    happen to be: not exact, and nothing bounds it. A rank's own updates are in its next rows, unless these are pulled
    ahead. On one rank it trains as `plain` does.
    """

    exact = False
    needs_totals = False
    staleness = None

    @dataclass(frozen=True)
    class Options:
        """`servers`: how many processes share the rows. `prefetch`: 1 pulls the next batch's rows while this one
        trains, so that they lack this step's update as well."""

        servers: int = 1
        prefetch: int = 0

        def __post_init__(self) -> None:
            if not 1 <= self.servers <= 64:
                raise ValueError(f"servers is {self.servers}, expected 1 to 64")
            if self.prefetch not in (0, 1):
                raise ValueError(f"prefetch is {self.prefetch}, expected 0 or 1")

    options: Options

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.lookahead = 2 * self.options.prefetch  # type: ignore[misc]

    def roles(self) -> Mapping[str, int]:
        return {ROLE: self.options.servers}

    def serve(self, context: ServerContext) -> TableServer:
        from fsbench_strategies.embedding.table_server import TableServer

        return TableServer(context)

    def build(self, tables: Sequence[TableSpec]) -> None:
        from fsbench.train.row_exchange import Router
        from fsbench.train.tables import RowPartition
        from fsbench_strategies.embedding.table_server import TableClient

        servers = self.context.servers[ROLE]
        self._tables = {spec.name: spec for spec in tables}
        self._partitions = {spec.name: RowPartition(spec.rows, len(servers)) for spec in tables}
        self._routers = {name: Router(partition) for name, partition in self._partitions.items()}
        self._clients = [
            TableClient(lane, tables, place, len(servers), self.context.dtype) for place, lane in enumerate(servers)
        ]
        self._pulled: dict[int, _Pulled] = {}
        self._pushes: list[Handle[None]] = []
        self._asked: list[list[int]] = []

    def prefetch(self, step: int, ids: Mapping[str, torch.Tensor]) -> None:
        self._pull(step, ids)

    def lookup(self, step: int, ids: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if not self.options.prefetch:
            self._pull(step, ids)
        pulled, device = self._pulled[step], self.context.device
        answers = [answer.wait() for answer in pulled.answers]
        for push in pulled.ahead:
            push.wait()  # done by now; if not well, it raises
        pulled.leaves = {
            name: rows.to(device).requires_grad_() for name, rows in self._unpack(pulled.routes, answers).items()
        }
        return {
            name: leaf.index_select(0, pulled.routes[name].spread.to(device)) for name, leaf in pulled.leaves.items()
        }

    def update(self, step: int, counts: TargetCounts) -> None:
        from fsbench.train.row_exchange import gradient_of

        pulled = self._pulled.pop(step)
        gradients = {name: gradient_of(leaf).cpu() for name, leaf in pulled.leaves.items()}
        self._pushes = []
        for place, client in enumerate(self._clients):
            own = {name: self._of(place, pulled.routes[name], rows) for name, rows in gradients.items()}
            self._pushes.append(client.push(own, step + 1, counts.local))

    def flush(self) -> None:
        for push in self._pushes:
            push.wait()
        for client in self._clients:
            client.stalest()  # answered only when all that was pushed before is in the tables

    def stalest(self) -> int:
        return max(client.stalest() for client in self._clients)

    def rows_asked(self) -> Sequence[Sequence[int]]:
        return self._asked

    def state_dict(self) -> dict[str, Any]:
        """Of the moment in which every rank has come here and pushed what it had."""
        self.flush()
        self._meet()
        state = {name: self._full(name) for name in self._tables}
        self._meet()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        from fsbench.train.tables import require_state

        for name, spec in self._tables.items():
            require_state(spec, state[name])  # on every rank: the others would wait for one that raises alone
        self.flush()
        self._meet()
        if self.context.rank == 0:
            for place, client in enumerate(self._clients):
                for name, partition in self._partitions.items():
                    client.load(name, {key: full[partition.ids(place)].cpu() for key, full in state[name].items()})
        self._meet()

    def _pull(self, step: int, ids: Mapping[str, torch.Tensor]) -> None:
        routes = {name: self._routers[name](ids[name].cpu()) for name in self._tables if name in ids}
        answers = [
            client.pull({name: self._of(place, route, route.slots) for name, route in routes.items()})
            for place, client in enumerate(self._clients)
        ]
        self._pulled[step] = _Pulled(routes, answers, ahead=self._pushes)
        splits = [route.splits for route in routes.values()]
        self._asked.append([sum(of_server) for of_server in zip(*splits, strict=True)])

    def _of(self, place: int, route: Route, rows: torch.Tensor) -> torch.Tensor:
        """The part of rows, in the order of `route`, that a server owns."""
        return rows.split(route.splits)[place]

    def _unpack(self, routes: Mapping[str, Route], answers: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Rows [u, dim] by table, in the order of its route, from what each server sent: all tables in one."""
        import torch

        blocks: dict[str, list[torch.Tensor]] = {name: [] for name in routes}
        for place, answer in enumerate(answers):
            sizes = [route.splits[place] * self._tables[name].dim for name, route in routes.items()]
            for name, block in zip(routes, answer.split(sizes), strict=True):
                blocks[name].append(block.view(-1, self._tables[name].dim))
        return {name: torch.cat(of_table) for name, of_table in blocks.items()}

    def _full(self, name: str) -> dict[str, torch.Tensor]:
        """The whole logical table and its optimizer state, in row order: [rows, ...]."""
        shards = [client.read(name) for client in self._clients]
        rows, partition = self._tables[name].rows, self._partitions[name]
        state = {key: tensor.new_empty(rows, *tensor.shape[1:]) for key, tensor in shards[0].items()}
        for place, shard in enumerate(shards):
            for key, tensor in shard.items():
                state[key][partition.ids(place)] = tensor
        return {key: tensor.to(self.context.device) for key, tensor in state.items()}

    def _meet(self) -> None:
        import torch.distributed as dist

        lane = self.context.lanes[CONTROL.name]
        lane.submit(partial(dist.barrier, group=lane.group), kind="state").wait()

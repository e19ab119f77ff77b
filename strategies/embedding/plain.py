"""Synchronous exchange of embedding rows, as row-wise sharded tables are trained today."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fsbench.axes import EXCHANGE, EmbeddingExchange, TableSpec, TargetCounts

if TYPE_CHECKING:
    import torch

    from fsbench.train.row_exchange import Asked, Route, ShardedTable


@dataclass
class _Pending:
    """A lookup whose gradients are still to come. `rows`: the leaf, [u, dim]."""

    route: Route
    asked: Asked
    rows: torch.Tensor


class Plain(EmbeddingExchange):
    """IDs to owners, rows back, gradients to owners: all within the step, each row once a rank.

    The reference of the axis. A rank asks for every row of its batch once (de-duplicated); owners add the gradients
    of a row in rank order and update it once.
    """

    uses = frozenset({"collectives"})
    lanes = (EXCHANGE,)

    @dataclass(frozen=True)
    class Options:
        """`wire`: what rows and gradients are sent as, rounded to nearest; by default the model's own type. One that is
        narrower than that is not exact."""

        wire: Literal["fp32", "bf16"] | None = None

    options: Options

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.exact = self.options.wire is None

    def build(self, tables: Sequence[TableSpec]) -> None:
        from fsbench.train.row_exchange import ShardedTable
        from fsbench.train.wire import is_lossless

        wire = self.options.wire
        self.exact = is_lossless(wire, self.context.dtype)
        self._tables = {spec.name: ShardedTable(spec, self.context, wire=wire) for spec in tables}
        self._pending: dict[str, _Pending] = {}

    def lookup(self, step: int, ids: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: self._lookup(self._tables[name], wanted) for name, wanted in ids.items()}

    def _lookup(self, table: ShardedTable, ids: torch.Tensor) -> torch.Tensor:
        route = table.route(ids)
        asked = table.ask(route, EXCHANGE)
        answer = table.shard.read(asked.slots)
        rows = table.exchange(EXCHANGE, answer, asked.splits, route.splits, asked.largest_split, "rows").wait()
        self._pending[table.spec.name] = _Pending(route, asked, rows.requires_grad_())
        return rows.index_select(0, route.spread)

    def update(self, step: int, counts: TargetCounts) -> None:
        from fsbench.train.row_exchange import gradient_of

        pending_by_table, self._pending = self._pending, {}
        for name, pending in pending_by_table.items():
            table, asked = self._tables[name], pending.asked
            gradients = table.exchange(
                EXCHANGE,
                gradient_of(pending.rows),
                pending.route.splits,
                asked.splits,
                asked.largest_split,
                "gradients",
            ).wait()
            table.shard.apply(asked.slots, gradients, step + 1, scale=1.0 / max(1, counts.total))

    def rows_asked(self) -> Sequence[int]:
        from fsbench.train.row_exchange import rows_asked

        return rows_asked(self._tables.values())

    def state_dict(self) -> dict[str, Any]:
        return {name: table.full(EXCHANGE) for name, table in self._tables.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, table in self._tables.items():
            table.shard.load(state[name])

"""Synchronous exchange of embedding rows, as row-wise sharded tables are trained today."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fsbench.axes import EXCHANGE, EmbeddingExchange, RankContext, TableSpec, TargetCounts

if TYPE_CHECKING:
    import torch

    from fsbench.train.row_exchange import TableExchange


class Plain(EmbeddingExchange):
    """IDs to owners, rows back, gradients to owners: all within the step, each row once a rank.

    The reference of the axis. A rank asks for every row of its batch once (de-duplicated); owners add the gradients
    of a row in rank order and update it once.
    """

    uses = frozenset({"collectives"})
    lanes = (EXCHANGE,)

    def setup(self, context: RankContext) -> None:
        super().setup(context)
        self._tables: dict[str, TableExchange] = {}

    def build(self, tables: Sequence[TableSpec]) -> None:
        from fsbench.train.row_exchange import TableExchange

        lane = self.context.lanes[EXCHANGE.name]
        self._tables = {spec.name: TableExchange(spec, self.context, lane) for spec in tables}

    def lookup(self, step: int, ids: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: self._tables[name].lookup(wanted) for name, wanted in ids.items()}

    def update(self, step: int, counts: TargetCounts) -> None:
        for table in self._tables.values():
            table.update(step + 1, scale=1.0 / max(1, counts.total))

    def state_dict(self) -> dict[str, Any]:
        return {name: table.full() for name, table in self._tables.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, table in self._tables.items():
            table.shard.load(state[name])

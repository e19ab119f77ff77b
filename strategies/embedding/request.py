"""A batch's rows of one table, each once a rank, as one message each way: IDs, rows, gradients.

Strategies say on which lane and when. Each step is collective on its lane.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fsbench.axes import LaneSpec, TargetCounts
from fsbench.train.row_exchange import Asked, Route, ShardedTable, gradient_of


@dataclass
class Request:
    """What one batch wants of one table. `rows`: the leaf of its graph, [u, dim], once they are fetched."""

    table: ShardedTable
    route: Route
    asked: Asked
    rows: torch.Tensor | None = None

    @classmethod
    def ask(cls, table: ShardedTable, ids: torch.Tensor, lane: LaneSpec) -> Request:
        """Tells the owners the distinct ones among int64[m] IDs."""
        route = table.route(ids)
        return cls(table, route, table.ask(route, lane))

    def fetch(self, lane: LaneSpec) -> Request:
        """Owners read the rows as they are now, and send them."""
        asked, shard = self.asked, self.table.shard
        answer = shard.read(asked.slots.to(shard.weight.device))
        self.rows = self.table.exchange(
            lane, answer, asked.splits, self.route.splits, asked.largest_split, "rows"
        ).wait()
        return self

    def spread(self) -> torch.Tensor:
        """[m, dim]: the rows in the order of the IDs, differentiable."""
        assert self.rows is not None, "rows are spread before they are fetched"
        return self.rows.requires_grad_().index_select(0, self.route.spread.to(self.rows.device))

    def update(self, step: int, counts: TargetCounts, lane: LaneSpec) -> None:
        """Gradients that backward left on the rows to their owners, who add them in rank order and update each once."""
        assert self.rows is not None, "rows are updated before they are fetched"
        asked, shard = self.asked, self.table.shard
        gradients = self.table.exchange(
            lane, gradient_of(self.rows), self.route.splits, asked.splits, asked.largest_split, "gradients"
        ).wait()
        slots = asked.slots.to(shard.weight.device)
        shard.apply(slots, gradients, step + 1, scale=1.0 / max(1, counts.total))

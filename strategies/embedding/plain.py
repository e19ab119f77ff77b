"""Synchronous exchange of embedding rows, as row-wise sharded tables are trained today."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from fsbench.axes import EXCHANGE, IDS, EmbeddingExchange, Handle, TableSpec, TargetCounts

if TYPE_CHECKING:
    import torch

    from fsbench.sim.contract import EmbeddingPlan, Stage
    from fsbench_strategies.embedding.request import Request


class Plain(EmbeddingExchange):
    """IDs to owners, rows back, gradients to owners: all within the step, each row once a rank.

    The reference of the axis. A rank asks for every row of its batch once (de-duplicated); owners add the gradients
    of a row in rank order and update it once.

    With `prefetch=1` owners are asked one step ahead, on lane `ids`, so that the step before hides it: rows and
    gradients are left within the step, as they were, and no bit changes.
    """

    uses = frozenset({"collectives"})
    lanes = (EXCHANGE,)

    @dataclass(frozen=True)
    class Options:
        """`wire`: what rows and gradients are sent as, rounded to nearest; by default the model's own type. One that is
        narrower than that is not exact. `prefetch`: how many batches ahead owners are told the IDs, 0 or 1."""

        wire: Literal["fp32", "bf16"] | None = None
        prefetch: int = 0

        def __post_init__(self) -> None:
            if self.prefetch not in (0, 1):
                raise ValueError(f"prefetch is {self.prefetch}, expected 0 or 1")

    options: Options

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.exact = self.options.wire is None
        if self.options.prefetch:
            self.lanes, self.lookahead = (IDS, EXCHANGE), 2

    def build(self, tables: Sequence[TableSpec]) -> None:
        from fsbench.train.row_exchange import ShardedTable
        from fsbench.train.wire import is_lossless

        wire = self.options.wire
        self.exact = is_lossless(wire, self.context.dtype)
        self._tables = {spec.name: ShardedTable(spec, self.context, wire=wire) for spec in tables}
        self._coming: dict[int, dict[str, Handle[Request]]] = {}
        self._requests: dict[str, Request] = {}

    def prefetch(self, step: int, ids: Mapping[str, torch.Tensor]) -> None:
        from fsbench_strategies.embedding.request import Request

        lane = self.context.lanes[IDS.name]
        self._coming[step] = {
            name: lane.submit(partial(Request.ask, self._tables[name], wanted, IDS), kind="ids")
            for name, wanted in ids.items()
        }

    def lookup(self, step: int, ids: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self._requests = self._asked(step, ids)
        return {name: request.fetch(EXCHANGE).spread() for name, request in self._requests.items()}

    def _asked(self, step: int, ids: Mapping[str, torch.Tensor]) -> dict[str, Request]:
        from fsbench_strategies.embedding.request import Request

        if self.options.prefetch:
            return {name: request.wait() for name, request in self._coming.pop(step).items()}
        return {name: Request.ask(self._tables[name], wanted, EXCHANGE) for name, wanted in ids.items()}

    def update(self, step: int, counts: TargetCounts) -> None:
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.update(step, counts, EXCHANGE)

    def rows_asked(self) -> Sequence[int]:
        from fsbench.train.row_exchange import rows_asked

        return rows_asked(self._tables.values())

    def plan(self, stage: Stage) -> EmbeddingPlan:
        from fsbench_strategies.embedding.plans import PlainPlan

        return PlainPlan(stage, wire=self.options.wire, ahead=bool(self.options.prefetch))

    def state_dict(self) -> dict[str, Any]:
        return {name: table.full(EXCHANGE) for name, table in self._tables.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, table in self._tables.items():
            table.shard.load(state[name])

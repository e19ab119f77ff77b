"""Rows one step ahead, whether or not they are about to change: the prefetch that prioritised exchange corrects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fsbench.axes import EXCHANGE, EmbeddingExchange, Handle, TableSpec, TargetCounts

if TYPE_CHECKING:
    import torch

    from fsbench.train.row_exchange import ShardedTable
    from fsbench_strategies.embedding.request import Request


class PrefetchStale(EmbeddingExchange):
    """All rows of the next batch during this step, so that they lack this step's update: stale by one; not exact.

    As torchrec's semi-synchronous pipeline does (`TrainPipelineSemiSync`). One lane carries everything, first in, first
    out: in step t the IDs and rows of t + 1, then, from the end of backward on, the gradients of t and their update. So
    a batch's rows hold all updates but those of the batch before it, whatever the timing. Gradients leave at once:
    behind the next fetch those would be stale by two, and the link is idle during the dense optimizer. The main thread
    waits for rows alone, which had a step to come.

    A resumed training reads its first batch afresh, which an unbroken one does not.
    """

    uses = frozenset({"collectives"})
    lanes = (EXCHANGE,)
    lookahead = 2
    exact = False
    staleness = 1

    def build(self, tables: Sequence[TableSpec]) -> None:
        from fsbench.train.row_exchange import ShardedTable

        self._tables = {spec.name: ShardedTable(spec, self.context) for spec in tables}
        self._requests: dict[int, dict[str, Handle[Request]]] = {}
        self._updates: list[Handle[None]] = []

    def prefetch(self, step: int, ids: Mapping[str, torch.Tensor]) -> None:
        self._requests[step] = {
            name: self._submit(partial(_fetch, self._tables[name], wanted)) for name, wanted in ids.items()
        }

    def lookup(self, step: int, ids: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: request.wait().spread() for name, request in self._requests[step].items()}

    def update(self, step: int, counts: TargetCounts) -> None:
        self._finish()  # those of the step before: they were ahead of this step's rows, and so are done
        for request in self._requests.pop(step).values():
            self._updates.append(self._submit(partial(request.wait().update, step, counts, EXCHANGE)))

    def flush(self) -> None:
        self._finish()

    def _finish(self) -> None:
        for pending in self._updates:
            pending.wait()
        self._updates = []

    def rows_asked(self) -> Sequence[int]:
        from fsbench.train.row_exchange import rows_asked

        return rows_asked(self._tables.values())

    def state_dict(self) -> dict[str, Any]:
        return {name: table.full(EXCHANGE) for name, table in self._tables.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, table in self._tables.items():
            table.shard.load(state[name])

    def _submit(self, job: Callable[[], Any]) -> Handle[Any]:
        return self.context.lanes[EXCHANGE.name].submit(job, kind="ids")


def _fetch(table: ShardedTable, ids: torch.Tensor) -> Request:
    from fsbench_strategies.embedding.request import Request

    return Request.ask(table, ids, EXCHANGE).fetch(EXCHANGE)

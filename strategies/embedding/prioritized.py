"""FreeScale's prioritised embedding exchange (arXiv 2604.24073, section on prioritised embedding updates)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from fsbench.axes import (
    CRITICAL,
    EXCHANGE,
    IDS,
    EmbeddingExchange,
    Handle,
    LaneSpec,
    TableSpec,
    TargetCounts,
)

if TYPE_CHECKING:
    import torch

    from fsbench.sim.contract import EmbeddingPlan, Stage
    from fsbench_strategies.embedding.classes import Met
    from fsbench_strategies.embedding.prioritized_table import PrioritizedTable


@dataclass
class _Batch:
    """One batch of one table on its way. `met`: its IDs at their owners; `early`, `shared`: its rows by class.

    `rows`: the leaf [u, dim], once the rows are merged.
    """

    met: Handle[Met]
    early: Handle[torch.Tensor]
    shared: Any = None
    rows: Any = None


class Prioritized(EmbeddingExchange):
    """Rows shared by this and the next batch first; all others travel one step ahead, their gradients one step behind.

    In step t, three lanes run beside the main thread, each first in, first out:

    - `exchange`: the update with the rest of the gradients of t - 1, then rows of t + 1 that t does not have;
    - `ids`: IDs of t + 1, and back from the owners which rows of t and t + 1 are in both;
    - `critical`, after backward: gradients of t that t + 1 needs, their update, and those rows of t + 1.

    The main thread waits for the rows of t only, and mostly they are there. It equals `plain` bit for bit: a row read
    early is not in t, so its last update is of t - 1 or before, which is ahead of it on `exchange`; each row of t is
    in one class as a whole, so that it is updated once, from the same gradients in the same order. A row that leaves
    and comes back is read behind its last update on the same lane.

    Its depth is one by construction: rows two steps ahead would need three batches of lookahead and a class against
    two batches, as either may update them; and a link that is busy all the time carries no more by it.
    """

    uses = frozenset({"collectives"})
    lanes = (IDS, EXCHANGE, CRITICAL)
    lookahead = 2

    @dataclass(frozen=True)
    class Options:
        """`check`: verify on the owners, in every step, the classes and that no row is read before its last write.

        `wire`: what rows and gradients are sent as, rounded to nearest; by default the model's own type. One that is
        narrower than that is not exact.
        """

        check: bool = False
        wire: Literal["fp32", "bf16"] | None = None

    options: Options

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.exact = self.options.wire is None

    def build(self, tables: Sequence[TableSpec]) -> None:
        from fsbench.train.wire import is_lossless

        self.exact = is_lossless(self.options.wire, self.context.dtype)
        self._tables = {spec.name: self._make_table(spec) for spec in tables}
        self._batches: dict[int, dict[str, _Batch]] = {}
        self._rest: list[Callable[[], None]] = []
        self._finishing: deque[list[Handle[None]]] = deque([[], []], maxlen=2)

    def _make_table(self, spec: TableSpec) -> PrioritizedTable:
        from fsbench_strategies.embedding.prioritized_table import PrioritizedTable

        return PrioritizedTable(spec, self.context, check=self.options.check, wire=self.options.wire)

    def prefetch(self, step: int, ids: Mapping[str, torch.Tensor]) -> None:
        self._send_rest()
        previous = self._batches.get(step - 1, {})
        self._batches[step] = {
            name: self._meet(self._tables[name], step, wanted, previous.get(name)) for name, wanted in ids.items()
        }

    def _meet(self, table: PrioritizedTable, step: int, ids: torch.Tensor, previous: _Batch | None) -> _Batch:
        met = self._submit(IDS, lambda: table.meet(step, ids, previous.met.wait() if previous else None))
        batch = _Batch(met, early=self._submit(EXCHANGE, lambda: table.read_early(met.wait())))
        if previous is None:
            # No urgent update will come whose rows these could follow.
            batch.shared = self._submit(CRITICAL, partial(_read_behind, self._finishing[-1], table, met))
        return batch

    def lookup(self, step: int, ids: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        rows = {name: self._merge(self._tables[name], batch) for name, batch in self._batches[step].items()}
        # These were ahead of this batch's early rows on their lane, and so are done: this raises what they raised.
        for finished in self._finishing[0]:
            finished.wait()
        return rows

    def _merge(self, table: PrioritizedTable, batch: _Batch) -> torch.Tensor:
        """Both classes into one buffer, spread to the order of the IDs.

        The shared rows lie first. No sum depends on where a row lies: each adds its own gradients, in ID order.
        """
        import torch

        early, shared, met = batch.early.wait(), batch.shared.wait(), batch.met.wait()
        batch.rows = torch.cat([*table.at_hand(met), shared, early]).requires_grad_()
        return batch.rows.index_select(0, met.spread.to(early.device))

    def update(self, step: int, counts: TargetCounts) -> None:
        coming = self._batches.get(step + 1, {})
        scale = 1.0 / max(1, counts.total)
        current = self._batches.pop(step)
        for name, batch in current.items():
            self._send_urgent(self._tables[name], batch, coming.get(name), scale)

    def _send_urgent(self, table: PrioritizedTable, batch: _Batch, coming: _Batch | None, scale: float) -> None:
        """On `critical`, followed by rows of the coming batch; the rest of the gradients waits for the next step.

        Sent now, the rest would share the link with what this step still waits for: these, and the dense gradients.
        """
        import torch

        from fsbench.train.row_exchange import gradient_of

        met, gradients = batch.met.wait(), gradient_of(batch.rows)
        if coming is None:
            rest = met.select(gradients, torch.ones_like(met.shared.wanted))
        else:
            next_met = coming.met.wait()
            needed = met.needed.wanted
            urgent, rest = met.select(gradients, needed), met.select(gradients, ~needed)

            def update_and_read() -> torch.Tensor:
                table.update_needed(met, urgent, scale)
                return table.read_shared(next_met)

            coming.shared = self._submit(CRITICAL, update_and_read)
        self._rest.append(partial(table.update_rest, met, rest, scale))

    def _send_rest(self) -> None:
        """On `exchange`: first thing in a step, ahead of the rows that are read early there."""
        self._finishing.append([self._submit(EXCHANGE, job) for job in self._rest])
        self._rest = []

    def flush(self) -> None:
        self._send_rest()
        for pending in (*self._finishing[0], *self._finishing[1]):
            pending.wait()
        for batch in (batch for batches in self._batches.values() for batch in batches.values()):
            if batch.shared is not None:
                batch.shared.wait()

    def rows_asked(self) -> Sequence[int]:
        from fsbench.train.row_exchange import rows_asked

        return rows_asked(self._tables.values())

    def plan(self, stage: Stage) -> EmbeddingPlan:
        from fsbench_strategies.embedding.plans import PrioritizedPlan

        return PrioritizedPlan(stage, wire=self.options.wire)

    def state_dict(self) -> dict[str, Any]:
        return {name: table.full(EXCHANGE) for name, table in self._tables.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, table in self._tables.items():
            table.shard.load(state[name])
            table.forget()

    def _submit(self, lane: LaneSpec, job: Callable[[], Any]) -> Handle[Any]:
        return self.context.lanes[lane.name].submit(job, kind="ids")


def _read_behind(updates: Sequence[Handle[None]], table: PrioritizedTable, met: Handle[Met]) -> torch.Tensor:
    """Rows of a batch whose table the batch before does not have: behind the last updates, which may be pending if one
    further back has it."""
    for pending in updates:
        pending.wait()
    return table.read_shared(met.wait())

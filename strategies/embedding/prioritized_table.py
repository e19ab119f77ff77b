"""The messages of prioritised exchange, for one table. Each method is a job of one lane; the strategy orders them.

A row of a batch travels in one of two classes. *Collision* rows are in the batch before too: they are read after that
batch's urgent update, on lane `critical`. *Exclusive* rows are not: they are read one step early, on lane `exchange`.
Likewise gradients: those of rows that the next batch needs are urgent, the rest is finished a step later.
"""

from __future__ import annotations

import torch

from fsbench.axes import CRITICAL, EXCHANGE, IDS, LaneSpec, RankContext, TableSpec
from fsbench.train.row_exchange import ShardedTable
from fsbench.train.wire import Wire
from fsbench_strategies.embedding.checks import ReadAfterWrite
from fsbench_strategies.embedding.classes import Bits, Met, RowClasses, count_set


class PrioritizedTable(ShardedTable):
    """A sharded table whose rows travel by class. `collision`, `exclusive`: what the classes are called in kinds."""

    collision = "collision"
    exclusive = "exclusive"

    def __init__(self, spec: TableSpec, context: RankContext, *, check: bool, wire: Wire | None = None) -> None:
        super().__init__(spec, context, wire=wire)
        self._check = check
        self.forget()

    def meet(self, step: int, ids: torch.Tensor, previous: Met | None) -> Met:
        """On `ids`: the batch's IDs, and the class bits of it and of the batch before."""
        met = self._classes.meet(step, ids, previous, IDS)
        if self._checks:
            self._checks.expect(step, met.asked.slots, None if previous is None else previous.asked.slots, met.shared)
        return met

    def read_early(self, met: Met) -> torch.Tensor:
        """On `exchange`, in the step before the batch's: its exclusive rows, [., dim]."""
        return self._send_rows(EXCHANGE, met, shared=False, kind=f"rows.{self.exclusive}")

    def read_shared(self, met: Met) -> torch.Tensor:
        """On `critical`, after the urgent update of the batch before: its collision rows, [., dim]."""
        return self._send_rows(CRITICAL, met, shared=True, kind=f"rows.{self.collision}")

    def at_hand(self, met: Met) -> list[torch.Tensor]:
        """Rows of the batch that did not travel with it, [., dim]: where there are any, they come before the others."""
        return []

    def _send_rows(self, lane: LaneSpec, met: Met, *, shared: bool, kind: str) -> torch.Tensor:
        answers, wanted = _of_class(met.shared, shared)
        slots = met.asked.slots[answers]
        if self._checks:
            self._checks.read(met.step, slots)
        return self.exchange(
            lane,
            self.shard.read(slots.to(self.shard.weight.device)),
            count_set(answers, met.asked.splits),
            count_set(wanted, met.route.splits),
            met.asked.largest_split,
            kind,
        ).wait()

    def update_needed(self, met: Met, gradients: torch.Tensor, scale: float) -> None:
        """On `critical`: gradients of rows that the next batch needs, and their update."""
        if met.needed is not None:
            self._update(CRITICAL, met, met.needed, gradients, scale, needed=True, kind=f"gradients.{self.collision}")

    def update_rest(self, met: Met, gradients: torch.Tensor, scale: float) -> None:
        """On `exchange`: all other gradients, and their update. After the last batch that is all of them."""
        needed = met.needed
        if needed is None:
            none, nothing = (torch.zeros(len(of.slots), dtype=torch.bool) for of in (met.asked, met.route))
            needed = Bits(none, nothing)
        self._update(EXCHANGE, met, needed, gradients, scale, needed=False, kind=f"gradients.{self.exclusive}")

    def _update(
        self,
        lane: LaneSpec,
        met: Met,
        bits: Bits,
        gradients: torch.Tensor,
        scale: float,
        *,
        needed: bool,
        kind: str,
    ) -> None:
        asked, wanted = _of_class(bits, needed)
        received = self.exchange(
            lane,
            gradients,
            count_set(wanted, met.route.splits),
            count_set(asked, met.asked.splits),
            met.asked.largest_split,
            kind,
        ).wait()
        slots = met.asked.slots[asked]
        self.shard.apply(slots.to(self.shard.weight.device), received, met.step + 1, scale=scale)
        if self._checks:
            self._checks.written(met.step, slots)

    def forget(self) -> None:
        """No batch has been met: at first, and after a checkpoint was loaded."""
        self._classes = RowClasses(self)
        self._checks = ReadAfterWrite(len(self.shard.ids)) if self._check else None


def _of_class(bits: Bits, chosen: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of one class: mask on the owner's side, mask on the asking side."""
    return (bits.asked, bits.wanted) if chosen else (~bits.asked, ~bits.wanted)

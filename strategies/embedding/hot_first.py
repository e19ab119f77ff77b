"""Popular rows first: rows classed by how often they are asked for, the hot ones copied on every rank.

What readers of FreeScale's summaries know as its prioritisation (arXiv 2604.24073 itself classes rows by whether the
next batch needs them: that is `prioritized`). Copies whose age is bounded are those of stale-synchronous caches, as HET
(Miao et al., VLDB 2022, section 3) keeps them, refreshed here at fixed steps instead of each row by its own clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from fsbench.axes import CRITICAL, Handle, TableSpec, TargetCounts
from fsbench_strategies.embedding.prioritized import Prioritized, _Batch

if TYPE_CHECKING:
    import torch

    from fsbench_strategies.embedding.hot_table import Fresh, HotTable, Push, Split

_WORTH = 0.75
"""How often a rank must ask for a row, between two refreshes, to be worth the row that each refresh sends it. At 1,
bytes break even; a little below, they pay for a row that nobody waits for."""


@dataclass
class _Copies:
    """How new the copies of a table are, in steps whose updates they hold. `sent`: as of the last push; `included`: as
    of the last whose values are used. `arriving`: pushes under way: the step from which their values are used, what
    those include, and the values."""

    sent: int = 0
    included: int = 0
    arriving: list[tuple[int, int, Handle[Fresh]]] = field(default_factory=list)


class HotFirst(Prioritized):
    """Rows asked for most: copied on every rank, refreshed first; all others as in `prioritized`; exact, or aged.

    Owners count what is asked of them, and let the counts fade. The fewest rows that make `coverage` of the lookups are
    hot (a row counts once a rank and step, as it travels). They are chosen anew after 1, 2, 4, ... steps, from then on
    every `renew`; the exchange runs empty then, as if training began, and that step waits for its rows. In between, hot
    rows travel on `critical` alone, ahead of the collisions among the cold ones; exclusive cold rows and gradients take
    the link when it is idle.

    `staleness=0` equals `plain` bit for bit. After backward the hot gradients go to their owners, who add them in rank
    order and update each row once; back come those that the coming batch of a rank has and that changed since it was
    last told. It moves the rows and gradients that `plain` moves, less what did not change: the gain is not their
    number, but that they need no IDs within the step and come first.

    `staleness=k` is not exact. A rank keeps its gradients of hot rows back, each step's divided by that step's targets.
    After every k-th step it sends their sums in one message; new values of all rows that changed arrive behind the next
    step, and serve from the step after that. So a copy lacks the updates of 1 to k steps, its own rank's too, and
    gradients arrive up to k - 1 steps late. Owners add the sums of a row in rank order, and update it n times with an
    n-th of the total, n being the most batches in which a rank had it (up to 127). With SGD that moves a row as the
    sum does. With row-wise Adagrad and lazy Adam it does what n steps with equal gradients do: of gradients that
    differ, they see the square of the mean instead of the mean of squares, and are damped less by their noise. Adam's
    bias correction counts the n steps up to the last. Rows that all ranks together ask for less than 3/4 times a rank
    and refresh stay cold: their copies would cost more than they save (at `staleness=0`, less than once a step).
    `state_dict` is complete after `flush`, which sends what is kept back.
    """

    @dataclass(frozen=True)
    class Options(Prioritized.Options):
        """`coverage`: share of the lookups that hot rows make, above 0, at most 1. `staleness`: the most steps whose
        updates a copy may lack. `renew`: steps between choices of the hot rows. `decay`: what remains of the counts at
        each, 0 to 1. `check`: also the age of every copy used."""

        coverage: float = 0.8
        staleness: int = 0
        renew: int = 64
        decay: float = 0.5

        def __post_init__(self) -> None:
            if not 0 < self.coverage <= 1:
                raise ValueError(f"coverage is {self.coverage}, expected more than 0 and at most 1")
            if self.staleness < 0:
                raise ValueError(f"staleness is {self.staleness}, expected 0 (exact) or a number of steps")
            if self.renew < 1:
                raise ValueError(f"renew is {self.renew}, expected at least 1 step")
            if not 0 <= self.decay <= 1:
                raise ValueError(f"decay is {self.decay}, expected 0 to 1")

    options: Options
    _tables: dict[str, HotTable]

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.staleness = self.options.staleness
        self.exact = self.exact and not self.staleness

    def build(self, tables: Sequence[TableSpec]) -> None:
        super().build(tables)
        self.exact = self.exact and not self.staleness
        self._oldest = 0
        self._forget()

    def _forget(self) -> None:
        """No row is hot, and no step has been trained."""
        self._copies = {name: _Copies() for name in self._tables}
        self._waiting: tuple[int, Mapping[str, torch.Tensor]] | None = None
        self._since = self._trained = 0
        self._length = 0

    def _make_table(self, spec: TableSpec) -> HotTable:
        from fsbench_strategies.embedding.hot_table import HotTable

        options = self.options
        return HotTable(spec, self.context, decay=options.decay, check=options.check, wire=options.wire)

    def prefetch(self, step: int, ids: Mapping[str, torch.Tensor]) -> None:
        self._renew_if_due(step - 1)
        if not self._length:
            self._since, self._length = step, 1
        if step >= self._since + self._length:
            self._waiting = step, ids  # until all that comes before it is done
        else:
            self._announce(step, ids)

    def _renew_if_due(self, current: int) -> None:
        """If the batch of the step that begins waits for another choice of hot rows, makes that, and starts afresh."""
        if self._waiting is None or self._waiting[0] > current:
            return
        (step, ids), self._waiting = self._waiting, None
        self.flush()
        passed, coverage = step - self._since, self.options.coverage
        least = _WORTH * self.context.ranks / self.staleness if self.staleness else 1.0
        for name, table in self._tables.items():
            self._submit(CRITICAL, partial(table.renew, passed, coverage, least)).wait()
            self._copies[name] = _Copies()
        self._since, self._length = step, min(2 * self._length, self.options.renew)
        self._announce(step, ids)

    def _announce(self, step: int, ids: Mapping[str, torch.Tensor]) -> None:
        before = self._batches.get(step - 1)
        super().prefetch(step, ids)
        for name, table in self._tables.items():
            # The update of the batch before brings what this one has, if that has the table; of old copies, any does.
            if before is None or (not self.staleness and name not in before):
                wanted = self._wanted(table, self._batches[step].get(name))
                self._push(name, table.pull(step, wanted), used_from=step)

    def _wanted(self, table: HotTable, batch: _Batch | None) -> torch.Tensor:
        """bool[h]: the hot places whose values must come: those of the batch, or all for many steps."""
        if self.staleness:
            return table.everything()
        return batch.met.wait().split.touched if batch else ~table.everything()

    def _push(self, name: str, push: Push, *, used_from: int) -> None:
        table, copies = self._tables[name], self._copies[name]
        if table.hot:
            copies.sent = push.step
            copies.arriving.append((used_from, push.step, self._submit(CRITICAL, partial(table.push, push))))

    def lookup(self, step: int, ids: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self._renew_if_due(step)
        for name, table in self._tables.items():
            self._adopt(table, self._copies[name], step)
            if table.hot and name in ids:
                self._observe_age(step - self._copies[name].included, step)
        return super().lookup(step, ids)

    def _adopt(self, table: HotTable, copies: _Copies, step: float) -> None:
        """Puts what is used from `step` on into the copies."""
        while copies.arriving and copies.arriving[0][0] <= step:
            _, copies.included, fresh = copies.arriving.pop(0)
            table.adopt(fresh.wait())

    def _observe_age(self, age: int, step: int) -> None:
        self._oldest = max(self._oldest, age)
        if self.options.check:
            assert 0 <= age <= self.staleness, f"step {step}: copies lack {age} steps, at most {self.staleness} allowed"

    def update(self, step: int, counts: TargetCounts) -> None:
        coming = self._batches.get(step + 1, {})
        self._trained = step + 1
        for name, batch in self._batches[step].items():  # ahead of the cold ones on their lane
            if self._tables[name].hot:
                self._send_hot(name, batch, coming.get(name), 1.0 / max(1, counts.total))
        if self.staleness and (self._trained - self._since) % self.staleness == 0:
            self._push_sums(used_from=self._trained + 1)
        super().update(step, counts)

    def _send_hot(self, name: str, batch: _Batch, coming: _Batch | None, scale: float) -> None:
        import torch

        from fsbench.train.row_exchange import gradient_of
        from fsbench_strategies.embedding.hot_table import Push

        table, trained = self._tables[name], self._trained
        split: Split = batch.met.wait().split
        gradients = gradient_of(batch.rows)[: len(split.places)]
        if not self.staleness:
            wanted = self._wanted(table, coming)
            self._push(name, Push(split.touched.to(torch.uint8), gradients, wanted, scale, trained), used_from=trained)
            return
        table.keep(split, gradients * scale)

    def _push_sums(self, *, used_from: int) -> None:
        """What was kept back, if anything was trained since, of every table: also of one that the last batch lacks."""
        for name, table in self._tables.items():
            if self._copies[name].sent < self._trained:
                self._push(name, table.push_of_sums(self._trained), used_from=used_from)

    def flush(self) -> None:
        if self.staleness:
            self._push_sums(used_from=self._trained)
        super().flush()
        for name, table in self._tables.items():
            self._adopt(table, self._copies[name], inf)

    def rows_by_class(self) -> Mapping[str, int]:
        tables = self._tables.values()
        return {name: sum(table.looked_up[name] for table in tables) for name in ("hot", "cold")}

    def evidence(self) -> Mapping[str, Any]:
        return {
            "hot_rows": {name: table.hot for name, table in self._tables.items()},
            "oldest_copy_steps": self._oldest,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._forget()

"""Stands between a strategy and what a rank lends it, and notes what it takes: to be held against what it declares."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from fsbench.axes import CONTROL, Collectives, DenseSync, EmbeddingExchange, RankContext, Strategy, TargetCounts


class Watch:
    """`lanes`: names of those it looked up; `collectives`, `totals`: whether it used other collectives, and looked at
    the target count over all ranks."""

    def __init__(self, strategy: Strategy) -> None:
        self.lanes: set[str] = set()
        self.collectives = False
        self.totals = False
        setup = strategy.setup
        vars(strategy)["setup"] = lambda context: setup(self._lend(context))
        for contract, name in ((DenseSync, "after_backward"), (EmbeddingExchange, "update")):
            if isinstance(strategy, contract):
                vars(strategy)[name] = partial(self._pass_on, getattr(strategy, name))

    def _lend(self, context: RankContext) -> RankContext:
        collectives: Any = _Collectives(context.collectives, self)
        return dataclasses.replace(context, lanes=_Lanes(context.lanes, self), collectives=collectives)

    def _pass_on(self, method: Callable[[int, Any], None], step: int, counts: TargetCounts) -> None:
        method(step, _Counts(counts, self))

    def undeclared_lanes(self, strategy: Strategy) -> list[str]:
        """Lanes that it looked up and does not declare. The control lane is everyone's."""
        return sorted(self.lanes - {lane.name for lane in strategy.lanes} - {CONTROL.name})


class _Lanes(Mapping[str, Any]):
    def __init__(self, lanes: Mapping[str, Any], watch: Watch) -> None:
        self._lanes, self._watch = lanes, watch

    def __getitem__(self, name: str) -> Any:
        self._watch.lanes.add(name)
        return self._lanes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lanes)

    def __len__(self) -> int:
        return len(self._lanes)


class _Collectives:
    def __init__(self, collectives: Collectives, watch: Watch) -> None:
        self._collectives, self._watch = collectives, watch

    def __getattr__(self, name: str) -> Any:
        self._watch.collectives = True
        return getattr(self._collectives, name)


class _Counts:
    """Looks like `TargetCounts`."""

    def __init__(self, counts: TargetCounts, watch: Watch) -> None:
        self._counts, self._watch = counts, watch
        self.local = counts.local

    @property
    def total(self) -> int:
        self._watch.totals = True
        return self._counts.total

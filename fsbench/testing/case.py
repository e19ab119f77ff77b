"""A strategy under check, and the trainings that the checks look at: each is done once, whoever asks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from fsbench.axes import DEFAULTS
from fsbench.options import Spec
from fsbench.plugins import FoundPlugin, create
from fsbench.probe import Probe, probe
from fsbench.testing.compare import check_finite
from fsbench.testing.exercise import Scenario, TableKinds
from fsbench.testing.pool import TaskFailed, shared_pool
from fsbench.testing.tasks import Ended
from fsbench.testing.trial import Trained, Trial, train
from fsbench.testing.verdicts import Fault, Skip

COUNTS = (1, 2, 3)
LIMIT_S = 30.0
_OWNERS: dict[Scenario, str] = {"ordinary": "trains"}
"""The check that tells why training on a scenario failed, where it is not called like the scenario."""


class Case:
    """One strategy with its options, on each of several numbers of ranks.

    Args:
        counts: numbers of ranks.
        limit_s: of one training, or of whatever else a check does on the ranks, which takes less than a second.
    """

    def __init__(
        self, found: FoundPlugin, spec: Spec, *, counts: Sequence[int] = COUNTS, limit_s: float = LIMIT_S
    ) -> None:
        self.found = found
        self.axis = found.kind
        self.spec = spec
        self.counts = counts
        self._limit_s = limit_s
        self._done: dict[Any, list[Ended] | Fault | Skip] = {}

    @cached_property
    def probe(self) -> Probe:
        """What importing it does, found out in a process of its own."""
        return probe(self.found)

    @cached_property
    def strategy(self) -> Any:
        """An instance, to ask what it declares.

        Raises:
            Skip: it does not import; check `imports` tells why.
            UserError: wrong options.
        """
        if self.probe.fault:
            raise Skip("it does not import: see `imports`")
        return create(self.axis, self.spec)

    @property
    def exact(self) -> bool:
        """Whether it claims to train as the reference does."""
        return bool(self.strategy.exact)

    @property
    def kinds(self) -> TableKinds:
        """The tables that it is checked on."""
        return TableKinds.for_(self.strategy)

    def trial(self, scenario: Scenario = "ordinary", spec: Spec | None = None, **how: Any) -> Trial:
        return Trial(self.axis, str(spec or self.spec), scenario, kinds=self.kinds, **how)

    def reference(self, ranks: int, scenario: Scenario = "ordinary") -> list[Trained]:
        """What the reference cell leaves of the same training."""
        return _reference(ranks, scenario, self.kinds)

    def run(self, function: Callable[..., Any], ranks: int, trial: Trial, *args: Any) -> list[Ended]:
        """`function(rank, ranks, trial, *args)` on real ranks.

        Raises:
            Fault: it failed on a rank, or did not end in time, and what each rank was at.
            Skip: the strategy cannot run here.
        """
        self._require_to_run()
        key = (function, ranks, trial, args)
        if key not in self._done:
            self._done[key] = self._attempt(*key)
        done = self._done[key]
        if isinstance(done, Exception):
            raise type(done)(*done.args)
        return done

    def train(self, ranks: int, trial: Trial) -> list[Trained]:
        """What training left on each rank. Raises what `run` does, and a `Fault` if a part of it is not finite."""
        trained = [ended.result for ended in self.run(train, ranks, trial)]
        check_finite(trained)
        return trained

    def trained(self, ranks: int, scenario: Scenario = "ordinary") -> list[Trained]:
        """The same for a check that is not about whether it trains at all.

        Raises:
            Skip: there is nothing to look at, and which check tells why.
        """
        try:
            return self.train(ranks, self.trial(scenario))
        except Fault:
            raise Skip(f"it does not train: see `{_OWNERS.get(scenario, scenario)}`") from None

    def _attempt(
        self, function: Callable[..., Any], ranks: int, trial: Trial, args: tuple[Any, ...]
    ) -> list[Ended] | Fault | Skip:
        try:
            return shared_pool().run_watched(function, ranks, trial, *args, limit_s=self._limit_s)
        except TaskFailed as failed:
            return Skip(failed.line) if failed.unsupported else Fault(failed.line)

    def _require_to_run(self) -> None:
        if reason := self.strategy.requirements():
            raise Skip(f"cannot run here: {reason}")


@functools.cache
def _reference(ranks: int, scenario: Scenario, kinds: TableKinds) -> list[Trained]:
    trial = Trial("sharding", DEFAULTS["sharding"], scenario, kinds=kinds)
    trained: list[Trained] = shared_pool().run(train, ranks, trial)
    return trained

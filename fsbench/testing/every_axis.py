"""What a strategy promises whatever its axis: see `fsbench.axes.Strategy`."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, get_args

from fsbench.axes import (
    AXES,
    CONTROL,
    CRITICAL,
    DENSE,
    EXCHANGE,
    IDS,
    SHUFFLE,
    EmbeddingExchange,
    LaneSpec,
    Sharding,
    WaitClass,
)
from fsbench.errors import UserError
from fsbench.options import Spec
from fsbench.plugins import create
from fsbench.summary import NO_SUMMARY, summary
from fsbench.testing.case import Case
from fsbench.testing.compare import check_equal, check_same_bits
from fsbench.testing.exercise import Scenario
from fsbench.testing.trial import interrupt, train
from fsbench.testing.verdicts import Fault, Skip, on_each_count

_LANES = (CONTROL, SHUFFLE, IDS, EXCHANGE, CRITICAL, DENSE)
_FLAGS = {
    "sharding": ("moves", "equal_counts", "exact"),
    "embedding": ("needs_totals", "exact"),
    "collectives": ("exact",),
    "sync": ("needs_totals", "together", "exact"),
}
_SCENARIOS: tuple[Scenario, ...] = ("ordinary", "an empty rank", "a giant sample")
_WRONG_TEXTS = ("0", "-1", "no-such-value")


def check_imports(case: Case) -> None:
    """Importing it neither fails, nor prints, nor starts a thread, nor takes torch along, which would make `fsbench
    list` slow."""
    done = case.probe
    if done.fault:
        raise Fault(done.fault)
    if done.printed:
        raise Fault(f"it prints when it is imported: {done.printed.strip().splitlines()[0]!r}")
    if done.threads:
        raise Fault(f"its module starts threads: {', '.join(done.threads)}; start them in `setup`, end them in `close`")
    if done.heavy:
        raise Fault(f"its module imports {', '.join(done.heavy)}; do that inside the methods that need it")


def check_declarations(case: Case) -> None:
    """What it states of itself is in the contract's terms: summary, axes, lanes, lookahead, flags, requirements."""
    strategy = case.strategy
    others = {axis for axis in AXES if axis != case.axis}
    if summary(case.found) == NO_SUMMARY:
        raise Fault("its class has no docstring, the first line of which is shown by `fsbench list`")
    if not (isinstance(strategy.uses, frozenset) and strategy.uses <= others):
        raise Fault(f"uses is {strategy.uses!r}; expected a frozenset of {', '.join(sorted(others))}")
    if not (isinstance(strategy.lookahead, int) and 0 <= strategy.lookahead <= 2):
        raise Fault(f"lookahead is {strategy.lookahead!r}; expected 0, 1 or 2")
    for flag in _FLAGS[case.axis]:
        if not isinstance(getattr(strategy, flag), bool):
            raise Fault(f"{flag} is {getattr(strategy, flag)!r}; expected True or False")
    _check_staleness(strategy)
    if (reason := strategy.requirements()) is not None and not (isinstance(reason, str) and reason):
        raise Fault(f"requirements() returned {reason!r}; expected a reason, or None")
    _check_lanes(strategy)
    if isinstance(strategy, EmbeddingExchange):
        _check_tables(strategy)
    if wrong := set(getattr(strategy, "on_host", ())) - set(get_args(WaitClass)):
        raise Fault(f"on_host has {', '.join(map(str, sorted(wrong)))}; valid: {', '.join(get_args(WaitClass))}")


def _check_tables(strategy: EmbeddingExchange) -> None:
    for name in ("dtypes", "optimizers"):
        ours, valid = getattr(strategy, name), getattr(EmbeddingExchange, name)
        if not (isinstance(ours, tuple) and ours and set(ours) <= set(valid)):
            raise Fault(f"{name} is {ours!r}; expected a tuple of {', '.join(valid)}, or of some of them")


def _check_staleness(strategy: Any) -> None:
    staleness = getattr(strategy, "staleness", 0)
    is_count = isinstance(staleness, int) and not isinstance(staleness, bool) and staleness >= 0
    if not (staleness is None or is_count):
        raise Fault(f"staleness is {staleness!r}; expected a number of steps, 0 if rows are never stale, or None")
    if staleness != 0 and strategy.exact:
        raise Fault(f"staleness is {staleness}, and exact is True; a row that lacks updates is not exact")


def _check_lanes(strategy: Any) -> None:
    ours = {lane.name: lane for lane in _LANES}
    for lane in strategy.lanes:
        if not isinstance(lane, LaneSpec) or lane.waits_as not in get_args(WaitClass):
            raise Fault(f"lanes has {lane!r}; expected LaneSpec(name, waits_as), waits_as one of {get_args(WaitClass)}")
        if ours.get(lane.name, lane) != lane:
            raise Fault(f"lanes redefines {lane.name!r}; take fsbench.axes.{lane.name.upper()}, or another name")


def check_wrong_options(case: Case) -> None:
    """A value of an option that makes no sense is refused before anything starts: what it accepts, it trains with."""
    options = type(case.strategy).Options
    hints = typing.get_type_hints(options)
    for field in dataclasses.fields(options):
        for text in _WRONG_TEXTS:
            spec = Spec(case.spec.name, {**case.spec.options, field.name: text})
            if _accepted(case, spec) and _changes(case, spec, field.name):
                _train_with(case, spec, f"{field.name}={text}", hints[field.name])


def _accepted(case: Case, spec: Spec) -> bool:
    try:
        create(case.axis, spec)
    except UserError:
        return False
    return True


def _changes(case: Case, spec: Spec, option: str) -> bool:
    return getattr(create(case.axis, spec).options, option) != getattr(case.strategy.options, option)


def _train_with(case: Case, spec: Spec, given: str, kind: Any) -> None:
    try:
        case.train(min(2, max(case.counts)), case.trial(spec=spec))
    except Fault as fault:
        raise Fault(f"{given} is accepted ({kind}), but: {fault}; refuse it by a ValueError in __post_init__") from None


@on_each_count
def check_trains(case: Case, ranks: int) -> None:
    """It trains to the end, all that comes of it is finite, and its evidence can be recorded."""
    for rank, one in enumerate(case.train(ranks, case.trial())):
        if one.evidence_fault:
            raise Fault(f"rank {rank}: evidence() cannot be recorded: {one.evidence_fault}")


@on_each_count
def check_repeats(case: Case, ranks: int) -> None:
    """Training twice leaves the same bits, if it is exact and does not follow what it measures."""
    _require_exact(case)
    if isinstance(case.strategy, Sharding) and not case.strategy.repeatable:
        raise Skip("it follows measured times (`repeatable` is False)")
    check_same_bits(case.trained(ranks), case.train(ranks, case.trial(again=True)))


@on_each_count
def check_equals_reference(case: Case, ranks: int) -> None:
    """Dense gradients of every step, tables, optimizer state: those of naive, plain, backend, allreduce, if exact."""
    _require_exact(case)
    check_equal(case.trained(ranks), case.reference(ranks))


@on_each_count
def check_an_empty_rank(case: Case, ranks: int) -> None:
    """Ranks without a sample, and a step without any, change nothing."""
    _check_scenario(case, ranks, "an empty rank")


@on_each_count
def check_a_giant_sample(case: Case, ranks: int) -> None:
    """One sample that is a thousand times as long as the others changes nothing."""
    _check_scenario(case, ranks, "a giant sample")


def _check_scenario(case: Case, ranks: int, scenario: Scenario) -> None:
    if case.exact and not _is_equal(case, ranks):
        raise Skip("it differs from the reference anyway: see `equals reference`")
    case.trained(ranks)
    trained = case.train(ranks, case.trial(scenario))
    if case.exact:
        check_equal(trained, case.reference(ranks, scenario))


def _is_equal(case: Case, ranks: int) -> bool:
    try:
        check_equal(case.trained(ranks), case.reference(ranks))
    except Fault:
        return False
    return True


@on_each_count
def check_same_operations(case: Case, ranks: int) -> None:
    """On each lane every rank issues the same operations in the same order, whatever its samples."""
    for scenario in _SCENARIOS:
        first, *others = case.trained(ranks, scenario)
        for rank, other in enumerate(others, start=1):
            for lane, ours in first.operations.items():
                _check_same(lane, ours, rank, other.operations[lane], scenario)


def _check_same(lane: str, ours: list, rank: int, theirs: list, scenario: str) -> None:
    same_size = ("all_reduce", "all_gather", "barrier")
    for place, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one[:2] != other[:2] or (one[0] in same_size and one[2] != other[2]):
            raise Fault(
                f"{scenario}, lane {lane}, operation {place}: rank 0 issued {_named(one)}, rank {rank} {_named(other)}"
            )
    if len(ours) != len(theirs):
        raise Fault(f"{scenario}, lane {lane}: rank 0 issued {len(ours)} operations, rank {rank} {len(theirs)}")


def _named(operation: tuple[str, str, int]) -> str:
    return f"{operation[0]} {operation[1]} ({operation[2]} B)"


@on_each_count
def check_declared_services(case: Case, ranks: int) -> None:
    """It uses the lanes and the axes that it declares, and makes no process group of its own."""
    for rank, one in enumerate(case.trained(ranks)):
        if one.undeclared:
            raise Fault(f"rank {rank}: it takes lane {', '.join(one.undeclared)}, which `lanes` does not declare")
        if one.used_collectives and "collectives" not in case.strategy.uses:
            raise Fault(f"rank {rank}: it calls context.collectives, but `uses` does not name collectives")
        if one.own_groups:
            raise Fault(f"rank {rank}: it made {one.own_groups} process groups besides its lanes'")


@on_each_count
def check_resumes(case: Case, ranks: int) -> None:
    """A fresh trainer that loads its checkpoint goes on as an unbroken one would, to rounding if it is exact."""
    unbroken, resumed = case.trained(ranks), case.train(ranks, case.trial(resumed_at=2))
    if case.exact:
        check_equal(resumed, unbroken, whose="that of an unbroken training")


@on_each_count
def check_teardown(case: Case, ranks: int) -> None:
    """After `close` no thread, process, socket or file is left, neither at the end nor after a failed step."""
    case.trained(ranks)
    _check_nothing_left(case.run(train, ranks, case.trial()), "at the end")
    _check_nothing_left(case.run(interrupt, ranks, case.trial(interrupted_at=2)), "after a failed step")


def _check_nothing_left(ended: list, when: str) -> None:
    for rank, one in enumerate(ended):
        if one.left:
            raise Fault(f"rank {rank}, {when}: left {', '.join(one.left)}")


def _require_exact(case: Case) -> None:
    if not case.exact:
        raise Skip("it does not claim to train as the reference does (`exact` is False)")


CHECKS = (
    check_imports,
    check_declarations,
    check_wrong_options,
    check_trains,
    check_repeats,
    check_equals_reference,
    check_an_empty_rank,
    check_a_giant_sample,
    check_same_operations,
    check_declared_services,
    check_resumes,
    check_teardown,
)

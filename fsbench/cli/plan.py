"""What `fsbench run` is asked for, resolved: every name looked up, every option typed, every cell laid out.

Nothing has started when a `Plan` exists, and nothing that a user can mistype is left to find out later.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fsbench import hogwild
from fsbench.axes import AXES, EmbeddingExchange
from fsbench.cli.request import DEFAULT_CHOICES, SETTINGS, Asked, Request
from fsbench.errors import FsbenchError, UserError
from fsbench.groups import canonical, groups_of
from fsbench.launch.cluster import Cluster
from fsbench.matrix import (
    DRIVEN_AXES,
    MOST_CELLS,
    MOST_RUNS,
    STRATEGY_AXES,
    Cell,
    RunSpec,
    Settings,
    effective_cell,
    ignored_axes,
    interleave,
    product,
)
from fsbench.options import Spec, build_options
from fsbench.plugins import ALL, KINDS, NOUNS, FoundPlugin, create, find_plugin, find_plugins
from fsbench.probe import import_faults
from fsbench.results.printable import one_line
from fsbench.roles import server_processes
from fsbench.workload import Workload


@dataclass(frozen=True)
class Choice:
    """A plugin that the runs use. `named`: on the command line, rather than by `all`, a matrix or a default.
    `unmet`: why it cannot be used on this machine, or None. `roles`: the server processes that it asks for. `members`:
    the plugins of its parameter groups."""

    spec: str
    plugin: FoundPlugin
    instance: Any
    named: bool
    unmet: str | None
    roles: Mapping[str, int]
    members: Sequence[FoundPlugin]


@dataclass(frozen=True)
class Obstacle:
    """Why a cell cannot run here. `who`: what stands in its way. `named`: whether that was asked for by name."""

    who: str
    reason: str
    named: bool

    def __str__(self) -> str:
        return f"{self.who}: {self.reason}"


@dataclass(frozen=True)
class Plan:
    """The choices by kind, the cells they make, and the runs of them in order. `matrix`: its name, if any."""

    matrix: str | None
    settings: Settings
    choices: Mapping[str, Sequence[Choice]]

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """First-named first. Cells that differ on an ignored axis only are one, unless it was named."""
        cells = product(self.specs["workloads"], self.specs["clusters"], self.specs)
        return tuple(dict.fromkeys(cell if self._ignored(cell) else self._effective(cell) for cell in cells))

    @cached_property
    def runs(self) -> tuple[RunSpec, ...]:
        return interleave(self.cells, self.settings)

    @cached_property
    def specs(self) -> dict[str, list[str]]:
        """The choices as texts, by kind."""
        return {kind: [choice.spec for choice in choices] for kind, choices in self.choices.items()}

    @cached_property
    def options(self) -> dict[str, dict[str, dict[str, Any]]]:
        """By kind and spec, every option with its value, those at their defaults too."""
        return {
            kind: {choice.spec: dataclasses.asdict(choice.instance.options) for choice in choices}
            for kind, choices in self.choices.items()
        }

    def chosen(self, cell: Cell) -> dict[str, Choice]:
        """What a cell is made of, by kind."""
        specs = {"workloads": cell.workload, "clusters": cell.cluster, **cell.strategies}
        return {
            kind: next(choice for choice in self.choices[kind] if choice.spec == spec) for kind, spec in specs.items()
        }

    def obstacle(self, cell: Cell) -> Obstacle | None:
        """Why a cell cannot run here, or None if it can."""
        if axis := self._ignored(cell):
            idle = f"no strategy of this cell uses {axis}; it makes no difference here"
            return Obstacle(self.indifferent(cell, axis), idle, named=True)
        made_of = self.chosen(cell)
        for kind, chosen in made_of.items():
            if reason := chosen.unmet or _unserved(chosen, made_of["clusters"]):
                return Obstacle(f"{NOUNS[kind]} {chosen.spec} ({chosen.plugin.origin})", reason, chosen.named)
        try:
            servers = server_processes({axis: choice.roles for axis, choice in made_of.items() if axis in AXES})
        except FsbenchError as error:
            return Obstacle("server processes", str(error), named=True)
        if reason := _crowded(len(servers), made_of["clusters"].instance):
            return Obstacle("server processes", reason, named=True)
        embedding, workload = made_of["embedding"], made_of["workloads"]
        if reason := _untrainable(embedding.instance, workload.instance):
            return Obstacle(f"embedding {embedding.spec} ({embedding.plugin.origin})", reason, embedding.named)
        return self._of_workers(made_of)

    def _of_workers(self, made_of: Mapping[str, Choice]) -> Obstacle | None:
        """The only strategy of its axis is as good as named: it was asked for with so many workers."""
        driven = {axis: made_of[axis].instance for axis in ("sharding", "embedding", "sync")}
        found = hogwild.obstacle(self.settings.workers, **driven, tables=made_of["workloads"].instance.has_tables)
        if found is None:
            return None
        blamed = made_of[found.axis]
        named = blamed.named or len(self.choices[found.axis]) == 1
        return Obstacle(f"{NOUNS[found.axis]} {blamed.spec} ({blamed.plugin.origin})", found.reason, named)

    def indifferent(self, cell: Cell, axis: str) -> str:
        """The strategies of a cell that leave `axis` without use, where others of this plan, in their place, use it."""
        others = [other for other in STRATEGY_AXES if other != axis and other in cell.strategies]
        able = [other for other in others if any(axis in choice.instance.uses for choice in self.choices[other])]
        members = able or [other for other in others if other in DRIVEN_AXES]
        return " + ".join(f"{other} {getattr(cell, other)}" for other in members)

    def _ignored(self, cell: Cell) -> str | None:
        """The axis that was named for the cell although no strategy of the cell uses it."""
        chosen = self.chosen(cell)
        return next((axis for axis in ignored_axes(cell, _uses(chosen)) if chosen[axis].named), None)

    def _effective(self, cell: Cell) -> Cell:
        return effective_cell(cell, _uses(self.chosen(cell)))


def make_plan(request: Request, matrix: str | None) -> Plan:
    """Resolves what was asked for.

    Args:
        request: what is not in it takes its default; `all` stands for every installed plugin.
        matrix: the name of the matrix in it, if any.

    Raises:
        UserError: the first thing that is wrong, where, and what would be right.
    """
    settings = _settings({key: request[key][0] for key in SETTINGS if key in request})
    _check_number(matrix, settings, [len(request.get(kind, ())) or 1 for kind in KINDS])
    return Plan(matrix, settings, {kind: _choices(kind, request.get(kind, ())) for kind in KINDS})


def prepare(plan: Plan, data_dir: Path | None) -> dict[str, Any]:
    """Prepares each workload once; returns the fingerprint of its data by workload.

    Raises:
        DataError: data that is missing or malformed.
        UserError: a cluster with more ranks, or more steps, than the data has samples for.
    """
    fingerprints = {}
    for workload in plan.choices["workloads"]:
        workload.instance.prepare(data_dir, plan.settings.seed)
        for cluster in plan.choices["clusters"]:
            _check_enough_samples(workload, cluster, plan.settings.workers)
            _check_enough_steps(workload, cluster, plan.settings)
        fingerprints[workload.spec] = dict(workload.instance.fingerprint())
    return fingerprints


def _settings(request: Mapping[str, Asked]) -> Settings:
    """Each is typed alone, so that what is wrong is told with its own place."""
    values = {}
    for key, asked in request.items():
        typed = build_options(Settings, {key: asked.text}, owner=asked.where or key)
        values[key] = getattr(typed, key)
    return Settings(**values)


def _check_number(matrix: str | None, settings: Settings, numbers: Sequence[int]) -> None:
    """Before anything is made of them: `numbers` of names by kind."""
    cells = math.prod(numbers)
    runs = cells * settings.repeats
    where = f"{matrix}: " if matrix else ""
    if cells > MOST_CELLS:
        factors = " x ".join(str(number) for number in numbers if number > 1)
        raise UserError(f"{where}{factors} names are {cells:,} cells, expected at most {MOST_CELLS:,}")
    if runs > MOST_RUNS:
        raise UserError(
            f"{where}{cells:,} cells x {settings.repeats:,} repeats are {runs:,} runs, expected at most {MOST_RUNS:,}"
        )


def _choices(kind: str, asked: Sequence[Asked]) -> list[Choice]:
    """Each plugin and options once, however they are spelled; a list that has them twice is refused."""
    choices: dict[tuple[str, str], Choice] = {}
    for one in asked or (Asked(DEFAULT_CHOICES[kind]),):
        for choice in _working(kind) if one.text == ALL else (_choice(kind, one),):
            key = (choice.plugin.name, repr(choice.instance.options))
            known = choices.get(key)
            if known and one.where and one.text != ALL:
                raise one.fault(f"{kind} has {choice.spec} twice{_spelled(known, choice)}")
            choices[key] = dataclasses.replace(known, named=known.named or choice.named) if known else choice
    return list(choices.values())


def _spelled(first: Choice, second: Choice) -> str:
    return "" if first.spec == second.spec else f", first as {first.spec}"


def _choice(kind: str, asked: Asked) -> Choice:
    try:
        spec = canonical(Spec.parse(asked.text))
        plugin = find_plugin(kind, spec.name)
        for fault in import_faults([plugin, *_members(kind, spec)]).values():
            raise UserError(fault)
        return _make(plugin, spec, asked.named)
    except UserError as error:
        raise asked.fault(error) from error


def _make(plugin: FoundPlugin, spec: Spec, named: bool) -> Choice:
    instance = create(plugin.kind, spec)
    try:
        reason = None if plugin.kind == "workloads" else instance.requirements()
        roles = dict(instance.roles()) if plugin.kind in AXES else {}
    except Exception as error:
        raise UserError(f"{plugin} cannot say what it requires: {type(error).__name__}: {error}") from error
    unmet = one_line(str(reason)) if reason else None
    return Choice(str(spec), plugin, instance, named, unmet, roles, _members(plugin.kind, spec))


def _members(kind: str, spec: Spec) -> list[FoundPlugin]:
    """Those that are installed: `create` tells of others."""
    names = {strategy.name for strategy in groups_of(spec).values()}
    return [plugin for plugin in find_plugins(kind) if plugin.name in names]


def _unserved(strategy: Choice, cluster: Choice) -> str | None:
    """Why the cluster cannot have the server processes that the strategy asks for, or None."""
    if not strategy.roles or cluster.instance.serves:
        return None
    wanted = ", ".join(f"{count} {role}" for role, count in strategy.roles.items())
    return f"needs server processes ({wanted}), which cluster {cluster.spec} does not start"


def _crowded(servers: int, cluster: Cluster) -> str | None:
    """Why a cluster cannot have that many server processes beside its ranks, or None."""
    most = cluster.most_processes
    if not servers or most is None or servers + cluster.ranks <= most:
        return None
    return f"{cluster.ranks} ranks and {servers} servers are more than the {most} processes that may be started here"


def _untrainable(embedding: EmbeddingExchange, workload: Workload) -> str | None:
    """Why a strategy cannot hold or train the tables of a workload, as far as its options tell, or None."""
    if not workload.has_tables:
        return None
    if workload.dtype_name not in embedding.dtypes:
        return f"cannot train tables of {workload.dtype_name}; set dtype of the workload to {_one_of(embedding.dtypes)}"
    optimizer = getattr(workload.options, "table_optimizer", None)
    if optimizer is not None and optimizer not in embedding.optimizers:
        return f"has no {optimizer}; set table_optimizer of the workload to {_one_of(embedding.optimizers)}"
    return None


def _one_of(names: Sequence[str]) -> str:
    return " or ".join(names)


def _working(kind: str) -> list[Choice]:
    """Every installed plugin that can be made without options, the default first, because the first-named is what
    others are compared with. A broken one, that nobody named, is left out with a warning."""
    default = Spec.parse(DEFAULT_CHOICES[kind]).name
    plugins = sorted(find_plugins(kind), key=lambda plugin: (plugin.name != default, plugin.name))
    faults, choices, left_out = import_faults(plugins), [], []
    for plugin in plugins:
        try:
            if fault := faults.get(plugin):
                raise UserError(fault)
            choices.append(_make(find_plugin(kind, plugin.name), Spec(plugin.name), named=False))
        except UserError as error:
            left_out.append(str(error))
    for reason in dict.fromkeys(left_out):
        warnings.warn(f"left out: {reason}", stacklevel=2)
    return choices


def _uses(chosen: Mapping[str, Choice]) -> dict[str, frozenset[str]]:
    return {axis: chosen[axis].instance.uses for axis in AXES if axis in chosen}


def _check_enough_samples(workload: Choice, cluster: Choice, workers: int) -> None:
    available = workload.instance.samples_available
    ranks, per_rank = cluster.instance.ranks, workload.instance.samples_per_rank
    taken, of_workers = ranks * workers * per_rank, f" by each of {workers} workers" if workers > 1 else ""
    if available is not None and taken > available:
        enough = available // (workers * per_rank)
        raise UserError(
            f"more ranks than samples: {ranks} ranks of {per_rank} samples{of_workers} take {taken} a step on"
            f" {cluster.spec}, and {workload.spec} has {available}: enough for {enough} ranks"
        )


def _check_enough_steps(workload: Choice, cluster: Choice, settings: Settings) -> None:
    ranks, per_rank, workers = cluster.instance.ranks, workload.instance.samples_per_rank, settings.workers
    available = workload.instance.steps_available(ranks * workers)
    of_workers = f"{workers} workers of " if workers > 1 else ""
    if available is not None and (steps := settings.steps or workload.instance.default_steps) > available:
        raise UserError(
            f"{workload.spec} is trained in one pass, and has {workload.instance.samples_available:,} samples: "
            f"{available:,} steps of {per_rank} on each of {of_workers}{ranks} ranks on {cluster.spec}, not {steps:,}; "
            f"set --steps {available} or fewer"
        )

"""What `fsbench run` is asked for, resolved: every name looked up, every option typed, every cell laid out.

Nothing has started when a `Plan` exists, and nothing that a user can mistype is left to find out later.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fsbench.axes import AXES, DEFAULTS
from fsbench.errors import UserError
from fsbench.matrix import Cell, RunSpec, Settings, effective_cell, ignored_axes, interleave, product
from fsbench.options import Spec, build_options
from fsbench.plugins import KINDS, NOUNS, FoundPlugin, create, find_plugin, find_plugins

ALL = "all"
DEFAULT_CHOICES = {**DEFAULTS, "workloads": "ml-100k", "clusters": "local:ranks=2"}


@dataclass(frozen=True)
class Choice:
    """A plugin that the runs use. `named`: the user named it, rather than `all` or a default."""

    spec: str
    plugin: FoundPlugin
    instance: Any
    named: bool


@dataclass(frozen=True)
class Plan:
    """The choices by kind, the cells they make, and the runs of them in order."""

    settings: Settings
    choices: Mapping[str, Sequence[Choice]]

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """First-named first. Cells that differ on an ignored axis only are one, unless it was named."""
        specs = {kind: [choice.spec for choice in choices] for kind, choices in self.choices.items()}
        cells = product(specs["workloads"], specs["clusters"], specs)
        return tuple(dict.fromkeys(cell if self._ignores(cell) else self._effective(cell) for cell in cells))

    @cached_property
    def runs(self) -> tuple[RunSpec, ...]:
        return interleave(self.cells, self.settings)

    def chosen(self, cell: Cell) -> dict[str, Choice]:
        """What a cell is made of, by kind."""
        specs = {"workloads": cell.workload, "clusters": cell.cluster, **cell.strategies}
        return {
            kind: next(choice for choice in self.choices[kind] if choice.spec == spec) for kind, spec in specs.items()
        }

    def unsupported(self, cell: Cell) -> tuple[str, bool] | None:
        """Why a cell cannot run here, and whether what cannot was asked for by name; None if it can."""
        if ignored := self._ignores(cell):
            return f"no strategy of this cell uses {ignored}; it makes no difference here", True
        for kind, choice in self.chosen(cell).items():
            if kind != "workloads" and (reason := _unmet(kind, choice)):
                return f"{NOUNS[kind]} {choice.spec}: {reason}", choice.named
        return None

    def _ignores(self, cell: Cell) -> str | None:
        """The axis that was named for the cell although no strategy of the cell uses it."""
        chosen = self.chosen(cell)
        return next((axis for axis in ignored_axes(cell, _uses(chosen)) if chosen[axis].named), None)

    def _effective(self, cell: Cell) -> Cell:
        return effective_cell(cell, _uses(self.chosen(cell)))


def make_plan(asked: Mapping[str, Sequence[str]], assignments: Sequence[str]) -> Plan:
    """Resolves what was asked for.

    Args:
        asked: by kind, the texts of its option; none means the default, `all` every installed plugin.
        assignments: `KEY=VALUE` texts for `Settings`.

    Raises:
        UserError: the first thing that is wrong, with what would be right.
    """
    return Plan(parse_settings(assignments), {kind: _choices(kind, asked.get(kind, ())) for kind in KINDS})


def parse_settings(assignments: Sequence[str]) -> Settings:
    """`Settings` out of `KEY=VALUE` texts.

    Raises:
        UserError: an unknown key, a key given twice, a value of the wrong type or range.
    """
    given: dict[str, str] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--set {text!r} is not KEY=VALUE")
        if key in given:
            raise UserError(f"{key} is given twice: {given[key]} and {value}")
        given[key] = value
    return build_options(Settings, given, owner="--set")


def prepare(plan: Plan, data_dir: Path | None) -> dict[str, Any]:
    """Prepares each workload once; returns the fingerprint of its data by workload.

    Raises:
        DataError: data that is missing or malformed.
        UserError: a cluster with more ranks than the data has samples for.
    """
    fingerprints = {}
    for workload in plan.choices["workloads"]:
        workload.instance.prepare(data_dir, plan.settings.seed)
        for cluster in plan.choices["clusters"]:
            _check_enough_samples(workload, cluster)
        fingerprints[workload.spec] = dict(workload.instance.fingerprint())
    return fingerprints


def _choices(kind: str, texts: Sequence[str]) -> list[Choice]:
    """Each plugin and options once, however they are spelled."""
    choices: dict[tuple[str, str], Choice] = {}
    for text in texts or (DEFAULT_CHOICES[kind],):
        named = bool(texts) and text != ALL
        for choice in _working(kind) if text == ALL else (_choice(kind, Spec.parse(text), named),):
            choices.setdefault((choice.plugin.name, repr(choice.instance.options)), choice)
    return list(choices.values())


def _choice(kind: str, spec: Spec, named: bool) -> Choice:
    return Choice(str(spec), find_plugin(kind, spec.name), create(kind, spec), named)


def _working(kind: str) -> list[Choice]:
    """Every installed plugin that can be made without options; a broken one is left out, with a warning."""
    choices = []
    for spec in _expand(kind):
        try:
            choices.append(_choice(kind, spec, named=False))
        except UserError as error:
            warnings.warn(f"left out: {error}", stacklevel=2)
    return choices


def _unmet(kind: str, choice: Choice) -> str | None:
    """Why a strategy or cluster cannot be used on this machine by this version, or None."""
    try:
        reason = choice.instance.requirements()
        roles = choice.instance.roles() if kind in AXES else {}
    except Exception as error:
        raise UserError(f"{choice.plugin} cannot say what it requires: {type(error).__name__}: {error}") from error
    if roles and not reason:
        wanted = ", ".join(f"{count} {role}" for role, count in roles.items())
        return f"needs server processes ({wanted}), which no cluster of this version starts"
    return reason


def _expand(kind: str) -> list[Spec]:
    """Every installed plugin, the default first, because the first-named is what others are compared with."""
    default = Spec.parse(DEFAULT_CHOICES[kind]).name
    names = dict.fromkeys(plugin.name for plugin in find_plugins(kind))
    return [Spec(name) for name in sorted(names, key=lambda name: (name != default, name))]


def _uses(chosen: Mapping[str, Choice]) -> dict[str, frozenset[str]]:
    return {axis: chosen[axis].instance.uses for axis in AXES if axis in chosen}


def _check_enough_samples(workload: Choice, cluster: Choice) -> None:
    available = workload.instance.samples_available
    ranks, per_rank = cluster.instance.ranks, workload.instance.samples_per_rank
    if available is not None and ranks * per_rank > available:
        raise UserError(
            f"more ranks than samples: {ranks} ranks of {per_rank} samples take {ranks * per_rank} a step on"
            f" {cluster.spec}, and {workload.spec} has {available}: enough for {available // per_rank} ranks"
        )

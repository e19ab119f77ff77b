"""What `fsbench run` is asked for: values by key, each with the place it was asked in, for messages.

A key is a kind of plugin, whose values are specs, or a setting, whose one value is a number. Values come from the
built-in matrix, a matrix file or neither, and those of the command line take their place key by key.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsbench.axes import DEFAULTS
from fsbench.errors import UserError
from fsbench.groups import TABLE_EXAMPLE, spec_of_table
from fsbench.matrix import BUILT_IN, Settings
from fsbench.options import nearest
from fsbench.plugins import KINDS

DEFAULT_CHOICES = {**DEFAULTS, "workloads": "ml-100k", "clusters": "local:ranks=2"}
SETTINGS = tuple(field.name for field in dataclasses.fields(Settings))
KEYS = (*KINDS, *SETTINGS)
_SHOWN = 120
"""Characters of a value in a message."""


@dataclass(frozen=True)
class Asked:
    """One value, as text. `where` starts messages about it: `night.toml:4`; None where its option tells enough.
    `named`: on the command line, rather than by a matrix."""

    text: str
    where: str | None = None
    named: bool = False

    def fault(self, message: object) -> UserError:
        return UserError(f"{self.where}: {message}" if self.where else str(message))


Request = Mapping[str, Sequence[Asked]]


def built_in() -> Request:
    return {key: [Asked(spec, "the built-in matrix") for spec in specs] for key, specs in BUILT_IN.items()}


def from_command_line(options: Mapping[str, Iterable[object]], assignments: Sequence[str]) -> Request:
    """What the options and `--set KEY=VALUE` texts ask for.

    Args:
        options: by key, the values of its option.

    Raises:
        UserError: an unknown key, one given twice, or a list that is no TOML.
    """
    given = [_assignment(text) for text in assignments]
    for key, values in options.items():
        where = f"--{key}" if key in SETTINGS else None
        given.append((key, [Asked(str(value), where, named=True) for value in values]))
    request: dict[str, Sequence[Asked]] = {}
    for key, asked in given:
        if key in request and asked:
            first, second = (", ".join(one.text for one in values) for values in (request[key], asked))
            raise UserError(f"{key} is given twice: {first} and {second}")
        if asked:
            request[key] = asked
    return request


def check_key(key: str, where: str) -> None:
    """Raises:
    UserError: no such key.
    """
    if key not in KEYS:
        raise UserError(f"{where}: unknown key {key!r}; {nearest(key, KEYS)}")


def texts_of(key: str, value: Any, where: str) -> list[str]:
    """A value out of TOML as texts: a number of a setting; the names of a kind, one of which may stand alone. A table
    of parameter groups is a name of a `sync`.

    Raises:
        UserError: a value of another type, or an empty list or table.
    """
    if key in SETTINGS:
        if isinstance(value, int) and not isinstance(value, bool):
            return [str(value)]
        raise UserError(f"{where}: {key} is {_as_toml(value)}, expected a whole number")
    default = DEFAULT_CHOICES[key]
    names = value if isinstance(value, list) else [value]
    if key == "sync":
        names = [_grouped(name, where) if isinstance(name, dict) else name for name in names]
    if not all(isinstance(name, str) for name in names):
        raise UserError(f'{where}: {key} is {_as_toml(value)}, expected a list of names such as ["{default}"]')
    if not names:
        raise UserError(f"{where}: {key} is an empty list; leave it out to take {default}")
    return names


def _grouped(table: Mapping[str, Any], where: str) -> str:
    if not all(isinstance(strategy, str) for strategy in table.values()):
        expected = f"patterns and strategies in quotes, such as {TABLE_EXAMPLE}"
        raise UserError(f"{where}: sync is {_as_toml(table)}, expected {expected}")
    try:
        return spec_of_table(table)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None


def _assignment(text: str) -> tuple[str, list[Asked]]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"--set {text!r} is not KEY=VALUE")
    check_key(key, "--set")
    # No name begins with a bracket or a quote; options hold commas, so a bare list could not be told apart.
    values = _toml(key, value) if key in KINDS and value[:1] in ("[", "{", '"', "'") else [value]
    return key, [Asked(one, "--set", named=True) for one in values]


def _toml(key: str, value: str) -> list[str]:
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        raise UserError(f'--set {key}={value}: expected NAME or a TOML list: ["NAME", "NAME:KEY=VALUE"]') from None
    return texts_of(key, parsed, "--set")


def _as_toml(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."

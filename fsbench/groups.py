"""Parameter groups as text: which strategy has the parameters whose names match a pattern; the first that matches.

An option ends at a comma, so that options of a group's strategy are joined by `&`, and groups by `;`:
`blocks.*=shadow-ma:alpha=0.5&duty=1;*=allreduce`. A matrix file has a table in its place:
`{ "blocks.*" = "shadow-ma:alpha=0.5,duty=1", "*" = "allreduce" }`.
"""

from __future__ import annotations

from collections.abc import Mapping

from fsbench.errors import UserError
from fsbench.options import Spec

GROUPED = "grouped"
"""The strategy that a table stands for."""
EXAMPLE = "blocks.*=shadow-ma;*=allreduce"
TABLE_EXAMPLE = '{ "blocks.*" = "shadow-ma", "*" = "allreduce" }'
"""The same, as a matrix file has it."""


def parse_groups(text: str) -> dict[str, Spec]:
    """Strategies by pattern, in order.

    Raises:
        ValueError: no group, a part that is none, or a pattern that is there twice.
    """
    groups: dict[str, Spec] = {}
    for part in text.split(";"):
        pattern, equals, strategy = part.partition("=")
        if not pattern or not equals:
            raise ValueError(f"{part!r} is not PATTERN=STRATEGY; expected groups such as {EXAMPLE}")
        if pattern in groups:
            raise ValueError(f"pattern {pattern!r} is given twice")
        groups[pattern] = _strategy(pattern, strategy.replace("&", ","))
    return groups


def groups_text(groups: Mapping[str, Spec]) -> str:
    """What `parse_groups` reads: one text, whatever the order in which options were given.

    Raises:
        ValueError: a pattern or an option has a character that separates.
    """
    parts = []
    for pattern, strategy in groups.items():
        if not pattern or any(char in pattern for char in ",;="):
            raise ValueError(f"pattern {pattern!r}: expected one without ',', ';' and '=' that is not empty")
        if any(char in str(strategy) for char in ";&"):
            raise ValueError(
                f"group {pattern!r}: {str(strategy)!r} has ';' or '&', which stand between groups and options"
            )
        parts.append(f"{pattern}={strategy}".replace(",", "&"))
    return ";".join(parts)


def spec_of_table(table: Mapping[str, str]) -> str:
    """The strategy that a table of patterns and strategies stands for: `grouped:groups=...`.

    Raises:
        ValueError: an empty table, or what cannot be written as groups.
    """
    if not table:
        raise ValueError(f"an empty table has no groups; expected some such as {TABLE_EXAMPLE}")
    groups = {pattern: _strategy(pattern, strategy) for pattern, strategy in table.items()}
    return str(Spec(GROUPED, {"groups": groups_text(groups)}))


def groups_of(spec: Spec) -> dict[str, Spec]:
    """Those of a strategy; none if it has no groups, or none that can be read: why, `create` tells."""
    try:
        return parse_groups(spec.options.get("groups", "")) if spec.name == GROUPED else {}
    except ValueError:
        return {}


def canonical(spec: Spec) -> Spec:
    """The same with its groups in one spelling, so that it makes one cell however it was written."""
    groups = groups_of(spec)
    return Spec(spec.name, {**spec.options, "groups": groups_text(groups)}) if groups else spec


def _strategy(pattern: str, text: str) -> Spec:
    try:
        return Spec.parse(text)
    except UserError as error:
        raise ValueError(f"group {pattern!r}: {error}") from None

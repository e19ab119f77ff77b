"""The lanes of a cell, in the order in which every rank creates them."""

from __future__ import annotations

from collections.abc import Iterable

from fsbench.axes import CONTROL, CRITICAL, DENSE, EXCHANGE, IDS, SHUFFLE, LaneSpec
from fsbench.errors import FsbenchError

_FIXED_ORDER = (CONTROL, SHUFFLE, IDS, EXCHANGE, CRITICAL, DENSE)


def ordered(wanted: Iterable[LaneSpec]) -> list[LaneSpec]:
    """Lanes without repeats, in the order in which their groups are created.

    Raises:
        FsbenchError: two strategies mean different lanes by one name.
    """
    specs = set(wanted) | {CONTROL, SHUFFLE}
    named = {spec.name: spec for spec in specs}
    if clash := next((spec for spec in specs if named[spec.name] != spec), None):
        raise FsbenchError(f"lane {clash.name!r} is declared as {clash} and as {named[clash.name]}")
    fixed = [spec for spec in _FIXED_ORDER if spec in specs]
    return fixed + sorted(specs - set(fixed), key=lambda spec: spec.name)

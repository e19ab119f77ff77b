"""From a name to the strategy that is meant."""

from __future__ import annotations

from fsbench.axes import AXES
from fsbench.errors import UserError
from fsbench.options import Spec, nearest
from fsbench.plugins import KINDS, NOUNS, find_plugin, find_plugins
from fsbench.testing.case import Case


def find_strategy(text: str, axis: str | None = None) -> Case:
    """The strategy that `text` (`NAME` or `NAME:KEY=VALUE,...`) means, on `axis` if that is given.

    Raises:
        UserError: no such strategy, strategies of several axes, or something that is no strategy.
    """
    spec = Spec.parse(text)
    if axis is None:
        axis = _only_axis(spec.name)
    if axis not in AXES:
        raise UserError(f"no checks for {axis!r}: they are of strategies; {nearest(axis, AXES)}")
    return Case(find_plugin(axis, spec.name), spec)


def _only_axis(name: str) -> str:
    found = [plugin for kind in KINDS for plugin in find_plugins(kind) if plugin.name == name]
    axes = list(dict.fromkeys(plugin.kind for plugin in found if plugin.kind in AXES))
    if len(axes) > 1:
        owners = " and ".join(str(plugin) for plugin in found)
        raise UserError(f"{name!r} is {owners}; say which is meant: {' or '.join(axes)}")
    if not axes and found:
        raise UserError(f"{found[0]} is no strategy; checks are of {', '.join(NOUNS[axis] for axis in AXES)}")
    if not axes:
        every = {plugin.name for axis in AXES for plugin in find_plugins(axis)}
        raise UserError(f"unknown strategy {name!r}; {nearest(name, every)}")
    return axes[0]

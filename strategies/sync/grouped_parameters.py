"""Which parameters a group has, and the module in which a strategy finds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from fsbench.errors import UserError

if TYPE_CHECKING:
    import torch


def share_out(patterns: Sequence[str], names: Sequence[str]) -> list[list[str]]:
    """By pattern, the names that it is the first to match, in their order.

    Raises:
        UserError: a name that none matches, or a pattern that is left without any.
    """
    first = {name: next((p for p in patterns if fnmatchcase(name, p)), None) for name in names}
    if stray := [name for name in names if first[name] is None]:
        raise UserError(f"no pattern of {', '.join(patterns)} matches {', '.join(stray)}; '*' would match all others")
    for pattern in patterns:
        if pattern not in first.values():
            taken = any(fnmatchcase(name, pattern) for name in names)
            there_are = f"the parameters are {', '.join(names) or 'none'}"
            why = "what it matches is in groups before it" if taken else there_are
            raise UserError(f"pattern {pattern!r} has no parameter: {why}")
    return [[name for name in names if first[name] == pattern] for pattern in patterns]


def module_of(parameters: Mapping[str, torch.nn.Parameter]) -> torch.nn.Module:
    """A module with these parameters, the same objects under the same names in the same order, and nothing else.

    Args:
        parameters: in the order of some module's `named_parameters`.
    """
    from torch import nn

    top = nn.Module()
    for name, parameter in parameters.items():
        *path, last = name.split(".")
        owner = top
        for part in path:
            if part not in dict(owner.named_children()):
                owner.add_module(part, nn.Module())
            owner = owner.get_submodule(part)
        owner.register_parameter(last, parameter)
    return top

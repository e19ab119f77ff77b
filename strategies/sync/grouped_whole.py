"""What groups of parameters make up together: the syncs of the whole replica, and its state dicts."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from fsbench.axes import Sync

if TYPE_CHECKING:
    import torch

    State = Mapping[str, torch.Tensor]


def complete_syncs(of_groups: Sequence[Sequence[Sync]], step_ends: Sequence[int]) -> Iterator[Sync]:
    """Those by which every group has had a sync since the last of these: the pace of the slowest group.

    None ever, if a group never syncs. Spreads are of groups, and there is none of the whole.

    Args:
        of_groups: each in order of time.
        step_ends: when this rank's steps ended, monotonic ns: what a step is differs between strategies.
    """
    missing = everyone = frozenset(range(len(of_groups)))
    for at_ns, group in sorted((sync.at_ns, group) for group, syncs in enumerate(of_groups) for sync in syncs):
        missing = missing - {group}
        if not missing:
            yield Sync(bisect(step_ends, at_ns), at_ns)
            missing = everyone


def whole_replicas(module: torch.nn.Module, of_groups: Sequence[Mapping[str, State]]) -> dict[str, State]:
    """State dicts of the module, by each name that a group has a replica by.

    A group that has none by that name is in it with its `mean`, or else its headline: where ranks have equal
    parameters, as by `allreduce`, that is every one of its replicas. Buffers are this rank's own.

    Args:
        of_groups: state dicts of the groups' parameters, by name.
    """
    names = dict.fromkeys(name for replicas in of_groups for name in replicas)
    return {name: _joined(module, [_closest(replicas, name) for replicas in of_groups]) for name in names}


def _closest(replicas: Mapping[str, State], name: str) -> State:
    return replicas.get(name) or replicas.get("mean") or next(iter(replicas.values()))


def _joined(module: torch.nn.Module, parts: Sequence[State]) -> State:
    values = {name: tensor for part in parts for name, tensor in part.items()}
    # A parameter may be in a state dict by several names, of which the groups know the first.
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    state = module.state_dict(keep_vars=True)
    return {key: values.get(names.get(id(tensor), ""), tensor).detach().clone() for key, tensor in state.items()}

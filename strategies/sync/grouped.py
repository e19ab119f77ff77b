"""Several dense synchronisations at once, each on some of the parameters."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fsbench.axes import DenseSync, RankContext, Server, ServerContext, Sync, TargetCounts
from fsbench.errors import DataError, FsbenchError, UserError
from fsbench.groups import parse_groups
from fsbench.options import Spec
from fsbench.plugins import create, load_plugin
from fsbench_strategies.sync.grouped_member import Member
from fsbench_strategies.sync.grouped_order import InOrder
from fsbench_strategies.sync.grouped_parameters import module_of, share_out
from fsbench_strategies.sync.grouped_whole import complete_syncs, whole_replicas

if TYPE_CHECKING:
    import torch


class Grouped(DenseSync):
    """Keeps groups of parameters together by a strategy each, independent of one another.

    A parameter is in the first group whose pattern its name matches. ShadowSync (arXiv 2003.03477) runs several
    algorithms at once on different components of a model in this manner. Every strategy is lent lanes and servers of
    its own, and attached to a module that has the group's parameters and nothing else.
    """

    @dataclass(frozen=True)
    class Options:
        """`groups`: PATTERN=STRATEGY;PATTERN=STRATEGY..., options of a strategy joined by `&`. Patterns are those of
        file names (`*`, `?`, `[ab]`), and match the whole name of a parameter."""

        groups: str = "*=allreduce"

        def __post_init__(self) -> None:
            parse_groups(self.groups)

    options: Options

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options)
        specs = parse_groups(self.options.groups)
        self.members = [_member(place, pattern, spec) for place, (pattern, spec) in enumerate(specs.items())]
        self.uses = frozenset().union(*(strategy.uses for strategy in self._strategies))
        self.lanes = tuple(lane for member in self.members for lane in member.lanes)
        self.lookahead = max(strategy.lookahead for strategy in self._strategies)
        self.exact = all(strategy.exact for strategy in self._strategies)
        self.needs_totals = any(strategy.needs_totals for strategy in self._strategies)
        # Of several groups it differs between ranks which one's sync makes the others' complete.
        self.together = len(self.members) == 1 and self.members[0].strategy.together

    @property
    def _strategies(self) -> Iterator[DenseSync]:
        return (member.strategy for member in self.members)

    def requirements(self) -> str | None:
        reasons = ((member, member.strategy.requirements()) for member in self.members)
        return next((f"{member}: {reason}" for member, reason in reasons if reason), None)

    def roles(self) -> Mapping[str, int]:
        return {role: count for member in self.members for role, count in member.roles.items()}

    def serve(self, context: ServerContext) -> Server:
        member = next(member for member in self.members if context.role in member.roles)
        return member.strategy.serve(member.lend_server(context))

    def setup(self, context: RankContext) -> None:
        super().setup(context)
        for member in self.members:
            member.strategy.setup(member.lend(context))

    def attach(self, module: torch.nn.Module) -> None:
        self._module = module
        self._step_ends: list[int] = []
        named = dict(module.named_parameters())
        owners: dict[torch.nn.Parameter, DenseSync] = {}
        shares = share_out([member.pattern for member in self.members], list(named))
        for member, names in zip(self.members, shares, strict=True):
            parameters = {name: named[name] for name in names}
            owners |= dict.fromkeys(parameters.values(), member.strategy)
            member.parameters = sum(parameter.numel() for parameter in parameters.values())
            member.strategy.attach(module_of(parameters))
        self._gradients = InOrder(
            [p for p in reversed(named.values()) if p.requires_grad],
            lambda parameter: owners[parameter].on_gradient_ready(parameter),
        )

    def on_gradient_ready(self, parameter: torch.nn.Parameter) -> None:
        self._gradients.complete(parameter)

    def after_backward(self, step: int, counts: TargetCounts) -> None:
        self._gradients.end()
        for strategy in self._strategies:
            strategy.after_backward(step, counts)

    def before_step(self) -> None:
        for strategy in self._strategies:
            strategy.before_step()

    def after_step(self) -> None:
        self._step_ends.append(time.monotonic_ns())
        for strategy in self._strategies:
            strategy.after_step()

    def flush(self) -> None:
        for strategy in self._strategies:
            strategy.begin_flush()  # of all first: others may still train while one of them waits for those
        for strategy in self._strategies:
            strategy.flush()

    def syncs(self) -> Sequence[Sync]:
        """Of one group its own; of several see `complete_syncs`, and `evidence` for each."""
        of_groups = [strategy.syncs() for strategy in self._strategies]
        return of_groups[0] if len(of_groups) == 1 else tuple(complete_syncs(of_groups, self._step_ends))

    def replicas(self) -> Mapping[str, Mapping[str, torch.Tensor]]:
        return whole_replicas(self._module, [strategy.replicas() for strategy in self._strategies])

    def state_dict(self) -> dict[str, Any]:
        """By pattern: the strategy's name, and its state."""
        return {
            member.pattern: {"strategy": member.spec.name, "state": member.strategy.state_dict()}
            for member in self.members
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises:
        DataError: of other groups, or of the same ones under other strategies.
        """
        saved, own = _groups_of(state), "; ".join(f"{member.pattern}={member.spec.name}" for member in self.members)
        if saved != own:
            raise DataError(f"the checkpoint is of groups {saved or 'none'}, expected {own}")
        for member in self.members:
            member.strategy.load_state_dict(state[member.pattern]["state"])

    def evidence(self) -> Mapping[str, Any]:
        """By pattern."""
        return {member.pattern: member.evidence() for member in self.members}

    def close(self) -> None:
        """All of them, whatever one of them raises."""
        with ExitStack() as stack:
            for strategy in self._strategies:
                stack.callback(strategy.close)


def _member(place: int, pattern: str, spec: Spec) -> Member:
    """Raises:
    FsbenchError: what `create` refuses, or groups in a group; which group it is.
    """
    try:
        plugin = load_plugin("sync", spec.name)
        if issubclass(plugin.cls, Grouped):
            raise UserError(f"{spec.name} in a group; list its groups beside this one")
        return Member(place, pattern, spec, plugin.found.origin, create("sync", spec))
    except FsbenchError as error:
        raise type(error)(f"group {pattern!r}: {error}") from error


def _groups_of(state: Mapping[str, Any]) -> str:
    """As `load_state_dict` tells them; nothing of a state that is of no groups."""
    named = {pattern: of.get("strategy") for pattern, of in state.items() if isinstance(of, Mapping)}
    return "; ".join(f"{pattern}={name}" for pattern, name in named.items() if name)

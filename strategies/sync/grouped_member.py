"""A group of parameters under a strategy of its own. What it asks for has names of its own too: nothing is shared."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fsbench.axes import CONTROL, DenseSync, LaneSpec, RankContext, ServerContext
from fsbench.options import Spec


@dataclass
class Member:
    """The `place`-th group. `parameters`: how many numbers it has; known after `attach`."""

    place: int
    pattern: str
    spec: Spec
    origin: str
    strategy: DenseSync
    parameters: int = 0

    def __str__(self) -> str:
        return f"group {self.pattern!r}"

    def own(self, name: str) -> str:
        """What a lane or a role is called that the strategy calls `name`: two of a kind shall never share one."""
        return f"group{self.place}-{name}"

    @property
    def lanes(self) -> tuple[LaneSpec, ...]:
        return tuple(dataclasses.replace(lane, name=self.own(lane.name)) for lane in self.strategy.lanes)

    @property
    def roles(self) -> dict[str, int]:
        return {self.own(role): count for role, count in self.strategy.roles().items()}

    def lend(self, context: RankContext) -> RankContext:
        """What the strategy sees of it: its lanes and servers by the names that it knows, and the control lane."""
        lanes = {lane.name: context.lanes[self.own(lane.name)] for lane in self.strategy.lanes}
        servers = {role: context.servers[self.own(role)] for role in self.strategy.roles()}
        shared = {CONTROL.name: context.lanes[CONTROL.name]}
        return dataclasses.replace(context, lanes=shared | lanes, servers=servers)

    def lend_server(self, context: ServerContext) -> ServerContext:
        """`context.role` is one of `roles`."""
        return dataclasses.replace(context, role=context.role.removeprefix(self.own("")))

    def evidence(self) -> Mapping[str, Any]:
        """Of this rank: what syncs the group, how often it did, and the strategy's own evidence. The median gap is of
        all steps so far, not of those alone that are measured."""
        syncs = self.strategy.syncs()
        gaps = [after.step - before.step for before, after in pairwise(syncs)]
        return {
            "strategy": str(self.spec),
            "origin": self.origin,
            "options": dataclasses.asdict(self.strategy.options),
            "lanes": [lane.name for lane in self.lanes],
            "parameters": self.parameters,
            "exact": self.strategy.exact,
            "syncs": len(syncs),
            "sync_gap_p50": statistics.median(gaps) if gaps else None,
            "evidence": dict(self.strategy.evidence()),
        }

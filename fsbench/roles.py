"""Server processes beside the ranks: which there are, and in what order, follows from the strategies of a cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fsbench.axes import AXES, WaitClass
from fsbench.errors import FsbenchError

_WAITS_AS: dict[str, WaitClass] = {
    "sharding": "shuffle",
    "embedding": "embedding",
    "collectives": "control",
    "sync": "dense",
}


@dataclass(frozen=True)
class ServerProcess:
    """The `place`-th of the `count` processes of a role that the strategy on `axis` asked for."""

    axis: str
    role: str
    place: int
    count: int

    def __str__(self) -> str:
        return f"{self.role} {self.place}"

    @property
    def lane(self) -> str:
        """The name of the ranks' lanes to it."""
        return f"{self.role}-{self.place}"

    @property
    def of_workers(self) -> bool:
        """Whether every worker of a rank is known here by itself, because it has a strategy of its own."""
        return self.axis in ("sharding", "embedding")

    @property
    def waits_as(self) -> WaitClass:
        """The class under which a rank's waits for it are reported."""
        return _WAITS_AS[self.axis]


def server_processes(roles: Mapping[str, Mapping[str, int]]) -> list[ServerProcess]:
    """All that the strategies of a cell ask for: by axis, what their `roles` say. Processes of servers are numbered
    after those of the ranks.

    Raises:
        FsbenchError: two strategies ask for one role, or one asks for less than one process.
    """
    asked: dict[str, str] = {}
    processes = []
    for axis in AXES:
        for role, count in roles.get(axis, {}).items():
            if role in asked:
                raise FsbenchError(f"{asked[role]} and {axis} both ask for {role} processes; a role is of one strategy")
            if count < 1:
                raise FsbenchError(f"{axis} asks for {count} {role} processes, expected at least 1")
            asked[role] = axis
            processes += [ServerProcess(axis, role, place, count) for place in range(count)]
    return processes


def member_names(ranks: int, servers: Sequence[ServerProcess]) -> list[str]:
    """What each process of a run is called, by its number: `rank 0`, ..., `table-server 0`, ..."""
    return [*(f"rank {rank}" for rank in range(ranks)), *map(str, servers)]

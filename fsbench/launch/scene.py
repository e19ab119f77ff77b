"""What every rank was doing at the moment when a run was given up, and which of them the others waited for."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from fsbench.launch.activity import Operation, read_activity
from fsbench.launch.heartbeat import PHASES, SERVES, Beat, Beats
from fsbench.launch.stacks import ask_stacks
from fsbench.launch.system import state_of

STUCK_S = 1.0
"""An operation that takes longer than this when a run is given up is one that the rank is stuck in."""


@dataclass(frozen=True)
class RankScene:
    """One rank. `stopped`: by a signal or a debugger. `operations`: by lane. `stacks`: None if it gave none."""

    beat: Beat | None
    stopped: bool
    operations: Mapping[str, Operation]
    stacks: str | None


@dataclass(frozen=True)
class Scene:
    """All ranks, then all servers, what they are called, and when that was (monotonic)."""

    ranks: Sequence[RankScene]
    names: Sequence[str]
    at_ns: int

    def stuck(self, rank: int) -> list[Operation]:
        """Operations that the rank is stuck in, oldest first."""
        under_way = [op for op in self.ranks[rank].operations.values() if op.under_way and not op.idle]
        return sorted((op for op in under_way if self.age_s(op) >= STUCK_S), key=lambda op: op.since_ns)

    def age_s(self, operation: Operation) -> float:
        return (self.at_ns - operation.since_ns) * 1e-9

    @property
    def late(self) -> list[int]:
        """The ranks that all others wait for: those that are stopped; else those that have not come to an operation
        in which another is stuck, and wait for nobody themselves; else, where nobody is stuck in an operation, those of
        the earliest phase. Empty if nobody is late, or everybody waits for someone."""
        if stopped := [rank for rank, scene in enumerate(self.ranks) if scene.stopped]:
            return stopped
        everyone = range(len(self.ranks))
        if any(self.stuck(rank) for rank in everyone):
            waits_for = {rank: missing for rank in everyone if (missing := self._missing(rank))}
            return sorted(set().union(*waits_for.values()) - waits_for.keys())
        return _behind([scene.beat for scene in self.ranks])

    def _missing(self, rank: int) -> set[int]:
        """The ranks that have not begun an operation in which this one is stuck."""
        return {
            other
            for operation in self.stuck(rank)
            for other, scene in enumerate(self.ranks)
            if (other in operation.members or (not operation.members and self._is_rank(other)))
            and _begun(scene.operations, operation.lane) < operation.number
        }

    def _is_rank(self, number: int) -> bool:
        beat = self.ranks[number].beat
        return beat is None or beat.phase != SERVES

    def summary(self) -> str:
        """One line: who is late, and what each rank is in."""
        late = self.late
        parts = [f"{self._are(late)} late"] if late else []
        alike = groupby(range(len(self.ranks)), self._doing)
        return "; ".join((*parts, *(f"{self._from_to(list(ranks))}: {doing}" for doing, ranks in alike)))

    def _from_to(self, numbers: Sequence[int]) -> str:
        """`rank 0`, `rank 0, rank 1`; of three and more the first and the last."""
        names = [self.names[number] for number in numbers]
        return ", ".join(names) if len(names) < 3 else f"{names[0]} to {names[-1]}"

    def _doing(self, rank: int) -> str:
        scene, stuck = self.ranks[rank], self.stuck(rank)
        text = str(scene.beat or "not started")
        if scene.stopped:
            text += ", stopped by a signal"
        if stuck:
            text += f", {self.age_s(stuck[0]):.0f} s in {stuck[0].name} on lane {stuck[0].lane}"
        return text

    def report(self) -> str:
        """Everything, for the log."""
        return "\n".join((f"\n==== given up: {self.summary()}", *map(self._paragraph, range(len(self.ranks))), ""))

    def _are(self, numbers: Sequence[int]) -> str:
        """`rank 1 is`, `rank 1 and table-server 0 are`."""
        names = [self.names[number] for number in numbers]
        if len(names) == 1:
            return f"{names[0]} is"
        return f"{', '.join(names[:-1])} and {names[-1]} are"

    def _paragraph(self, rank: int) -> str:
        scene = self.ranks[rank]
        lines = [f"---- {self.names[rank]}: {self._doing(rank)}"]
        for op in sorted(scene.operations.values(), key=lambda op: op.lane):
            state = "under way" if op.under_way else "done; begun"
            lines.append(f"lane {op.lane}: operation {op.number}, {op.name}, {state} for {self.age_s(op):.1f} s")
        lines.append(scene.stacks or ("stopped: no stacks" if scene.stopped else "gave no stacks"))
        return "\n".join(lines)


def take_scene(folder: Path, beats: Beats, names: Sequence[str]) -> Scene:
    """Asks the processes, which takes a second at most, whatever they are stuck in."""
    pids = {rank: beat.pid for rank, beat in enumerate(beats) if beat}
    operations = [read_activity(folder, rank) for rank in range(len(beats))]
    at_ns = time.monotonic_ns()
    stopped = {rank for rank, pid in pids.items() if state_of(pid) == "stopped"}
    stacks = ask_stacks(folder, pids)
    scenes = [RankScene(beat, rank in stopped, operations[rank], stacks.get(rank)) for rank, beat in enumerate(beats)]
    return Scene(scenes, names, at_ns)


def _begun(operations: Mapping[str, Operation], lane: str) -> int:
    return operations[lane].number if lane in operations else 0


def _behind(beats: Beats) -> list[int]:
    """The ranks of the earliest phase and the fewest steps, if others are further by more than the step that they may
    be ahead while all is well."""
    places = {
        rank: (PHASES.index(beat.phase), beat.done) if beat and beat.phase in PHASES else (-1, 0)
        for rank, beat in enumerate(beats)
        if not (beat and beat.phase == SERVES)
    }
    (phase, done), last = min(places.values()), max(places.values())
    if last <= (phase, done + 1):
        return []
    return [rank for rank, place in places.items() if place == (phase, done)]

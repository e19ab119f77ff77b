"""When a run must be given up: its time is over, no rank moves any more, or a rank is gone before it was done."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fsbench.launch.heartbeat import Beats, read_beats
from fsbench.launch.scene import Scene, take_scene
from fsbench.launch.system import state_of


@dataclass(frozen=True)
class Limits:
    """Seconds: how long a run may take, and for how long none of its ranks may move."""

    run_s: float
    stall_s: float


@dataclass(frozen=True)
class Cut:
    """Why a run was given up.

    `limit_s`: the limit of a `time` or a `stall`; `scene`: what the ranks did then. `lost`: the ranks that were gone.
    """

    kind: Literal["time", "stall", "lost"]
    limit_s: float = 0.0
    scene: Scene | None = None
    lost: Sequence[int] = ()


class Watchdog:
    """Looks at the processes of a run, again and again: ranks, then servers, called `names`. One moves when its beat
    changes: another phase, another step."""

    def __init__(
        self, folder: Path, names: Sequence[str], limits: Limits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.beats: Beats = [None] * len(names)
        """As of the last look."""
        self._names = names
        self._folder = folder
        self._limits = limits
        self._clock = clock
        self._started = self._moved = clock()

    def look(self) -> Cut | None:
        """Why the run must be given up now, or None."""
        before, self.beats = self.beats, read_beats(self._folder, len(self.beats))
        now = self._clock()
        if self.beats != before:
            self._moved = now
        if lost := self._lost():
            return Cut("lost", lost=lost)
        if now - self._started > self._limits.run_s:
            return self._cut("time", self._limits.run_s)
        if now - self._moved > self._limits.stall_s:
            return self._cut("stall", self._limits.stall_s)
        return None

    def _cut(self, kind: Literal["time", "stall"], limit_s: float) -> Cut:
        return Cut(kind, limit_s, take_scene(self._folder, self.beats, self._names))

    def _lost(self) -> list[int]:
        """Ranks whose process is gone although their last word, read after that, is not that they are done."""
        gone = [rank for rank, beat in enumerate(self.beats) if beat and state_of(beat.pid) == "gone"]
        if not gone:
            return []
        self.beats = read_beats(self._folder, len(self.beats))
        return [rank for rank in gone if (beat := self.beats[rank]) and beat.phase != "done"]

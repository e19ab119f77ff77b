"""The progress line of a session: run n of N, phase, time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType

from tqdm import tqdm

from fsbench.launch.heartbeat import PHASES, SERVES, Beat

# Where a run is when a phase begins, as a share of the run; training fills the gap by its steps.
_BEGINS = dict(zip(PHASES, (0.0, 0.04, 0.06, 0.1, 0.12, 0.75, 0.8, 0.98, 1.0), strict=True))


class Progress:
    """A bar on a terminal, one line a run elsewhere, nothing when quiet. All of it on standard error."""

    def __init__(self, runs: int, quiet: bool) -> None:
        self._runs = runs
        self._done = 0
        self._plain = not quiet and not sys.stderr.isatty()
        self._bar = tqdm(
            total=runs,
            disable=quiet or self._plain,
            leave=False,
            dynamic_ncols=True,
            # What changes comes first: a narrow terminal cuts the cell, not the phase or the time.
            bar_format="{percentage:3.0f}%|{bar:12}| {desc}",
        )
        self._title = ""
        self._started = 0.0
        self._begun = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def begin(self, title: str) -> None:
        self._title = title
        self._started = time.monotonic()
        self._show("start")

    def update(self, beats: Sequence[Beat | None]) -> None:
        """Shows the phase of the rank that is furthest behind, once all have started."""
        known = [beat for beat in beats if beat is not None and beat.phase in _BEGINS]
        if len(known) < sum(beat is None or beat.phase != SERVES for beat in beats):
            return
        last = min(known, key=_share)
        self._bar.n = self._done + _share(last)
        self._show(str(last))

    def _show(self, phase: str) -> None:
        self._bar.set_description_str(f"run {self._number}, {phase}, {self._time_left()}: {self._title}")

    def _time_left(self) -> str:
        """At the pace so far; unknown until something was done."""
        if not self._bar.n:
            return "time left unknown"
        elapsed = time.monotonic() - self._begun
        left = int(elapsed * (self._runs - self._bar.n) / self._bar.n)
        return f"about {left // 60}:{left % 60:02} left"

    @property
    def _number(self) -> str:
        return f"{self._done + 1} of {self._runs}"

    def end(self, status: str, reason: str | None) -> None:
        text = f"run {self._number}: {self._title}: {status}, {time.monotonic() - self._started:.1f} s"
        self._done += 1
        self._bar.n = self._done
        if reason is not None:
            text = f"{text}: {reason}"
        if self._plain:
            print(text, file=sys.stderr, flush=True)
        elif reason is not None and not self._bar.disable:
            tqdm.write(text, file=sys.stderr)


def _share(beat: Beat) -> float:
    begin = _BEGINS[beat.phase]
    if not beat.total:
        return begin
    end = _BEGINS[PHASES[PHASES.index(beat.phase) + 1]]
    return begin + (end - begin) * beat.done / beat.total

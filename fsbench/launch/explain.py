"""Status and reason of a run that left no outcome, from all that its processes left: words, exit codes, the log."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from fsbench.launch.handover import RankError
from fsbench.launch.process import Ended

_EXIT_CODE = re.compile(r"^\s*rank\s*: (\d+) .*\n\s*exitcode\s*: (-?\d+)", re.MULTILINE)


def explain(ended: Ended, errors: Sequence[RankError], log: str = "") -> tuple[str, str]:
    """One line, with the first rank to blame and its phase.

    Args:
        errors: what ranks had to say, causes first.
        log: what the launcher and the ranks printed, or its end.
    """
    if ended.cut and ended.cut.scene:
        what = "time limit of {:g} s reached" if ended.cut.kind == "time" else "no rank moved for {:g} s"
        return "timeout", f"{what.format(ended.cut.limit_s)}; {ended.cut.scene.summary()}"
    if errors and not errors[0].lost_peer:
        return _of_error(errors[0], ended.names)
    if ended.cut is None and ended.exit_code < 0:
        return "failed", f"the launcher of the ranks was {how_ended(ended.exit_code)}; {_last_words(ended)}"
    if culprit := _culprit(ended, errors):
        return "failed", _of_culprit(*culprit, ended, errors, log)
    if errors:
        return _of_error(errors[0], ended.names)
    last = next((line for line in reversed(log.splitlines()) if line.strip()), "nothing was printed")
    return "failed", f"ended with exit code {ended.exit_code} and no error; {_last_words(ended)}: {last.strip()}"


def _of_error(error: RankError, names: Sequence[str]) -> tuple[str, str]:
    message = error.message.splitlines()[0] if error.message else "no message"
    where = "" if error.kind == "unsupported" else f"{names[error.rank]}, {error.phase}: "
    return error.kind, where + message


def _culprit(ended: Ended, errors: Sequence[RankError]) -> tuple[int, bool] | None:
    """The first rank that ended without a cause of its own, and whether a SIGTERM reached it. Those that were seen to
    be gone first come first, then those that said nothing, then those that were told to stop, in that order."""
    told = [error.rank for error in errors]
    terminated = [error.rank for error in errors if error.kind == "stopped"]
    silent = [rank for rank, beat in enumerate(ended.beats) if beat and beat.phase != "done" and rank not in told]
    suspects = [*silent, *terminated]
    lost = ended.cut.lost if ended.cut else ()
    first = next((rank for rank in suspects if rank in lost), suspects[0] if suspects else None)
    return None if first is None else (first, first in terminated)


def _of_culprit(rank: int, terminated: bool, ended: Ended, errors: Sequence[RankError], log: str) -> str:
    if terminated:
        phase = next(error.phase for error in errors if error.rank == rank)
        return f"{ended.names[rank]}, {phase}: ended by a SIGTERM that was not ours"
    return f"{ended.names[rank]}, {ended.beats[rank]}: {how_ended(exit_codes(log).get(rank))}"


def exit_codes(log: str) -> dict[int, int]:
    """By rank, as torch's launcher lists them when a run failed; negative is the number of a signal."""
    return {int(rank): int(code) for rank, code in _EXIT_CODE.findall(log)}


def how_ended(exit_code: int | None) -> str:
    """What to say of a rank that left no word."""
    if exit_code is None or exit_code >= 0:
        return "ended without a word" + (f", exit code {exit_code}" if exit_code else "")
    name = next((known.name for known in signal.Signals if known == -exit_code), f"signal {-exit_code}")
    return f"killed by {name}" + (" (out of memory, or a limit of the system?)" if name == "SIGKILL" else "")


def _last_words(ended: Ended) -> str:
    return ", ".join(f"{name}: {beat or 'not started'}" for name, beat in zip(ended.names, ended.beats, strict=True))

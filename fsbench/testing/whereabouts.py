"""What this process is at, in one line: for reports of what hangs."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from fsbench.results.printable import one_line

_DEPTH = 3
"""Lines of a thread's stack that are shown, innermost first."""
_IDLE = {("lanes.py", "_drain"), ("tasks.py", "serve")}
"""Where threads of ours wait for work."""
_noted = ""


def note(text: str) -> None:
    """How far the task is, to be told when it hangs."""
    global _noted
    _noted = text


def whereabouts() -> str:
    """The last note, then each thread but the calling one and idle ones: its name and innermost lines, without those
    that tell nothing."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    told = [_noted] if _noted else []
    main_first = sorted(sys._current_frames().items(), key=lambda item: item[0] != threading.main_thread().ident)
    for ident, frame in main_first:
        lines = [] if ident == threading.get_ident() else list(_lines(frame))
        if lines:
            told.append(f"{names.get(ident, 'a thread')} in {' < '.join(lines)}")
    return ", ".join(told) or "nothing of its own"


def in_a_line(error: BaseException) -> str:
    """What was raised, and the innermost line of its traceback that tells something."""
    message = one_line(str(error))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _foreign(frame.filename)]
    where = f" in {frames[-1].name} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {message}{where}"


def _lines(frame: FrameType) -> Iterator[str]:
    shown = 0
    at: FrameType | None = frame
    while at is not None and shown < _DEPTH:
        file, function = at.f_code.co_filename, at.f_code.co_name
        if not _foreign(file):
            if (Path(file).name, function) in _IDLE:
                return
            shown += 1
            yield f"{function} ({Path(file).name}:{at.f_lineno})"
        at = at.f_back


def _foreign(file: str) -> bool:
    """Whether a line of that file tells an author of strategies nothing: Python's library, torch, our recorder."""
    inside = [f"{os.sep}torch{os.sep}", f"{os.sep}fsbench{os.sep}collect{os.sep}"]
    if file.startswith("<") or any(part in file for part in inside):
        return True
    return file.startswith(sysconfig.get_path("stdlib")) and f"{os.sep}site-packages{os.sep}" not in file

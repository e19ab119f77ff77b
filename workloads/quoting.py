"""Lines of files in messages."""

from __future__ import annotations

_SHOWN = 60


def quoted(line: bytes) -> str:
    """The line, or its beginning, in quotes, without its line end; nothing in it acts on a terminal."""
    text = line.rstrip(b"\r\n").decode("utf-8", "replace")
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")

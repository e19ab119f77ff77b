"""Logs of runs that failed."""

from __future__ import annotations

from pathlib import Path

MOST_BYTES = 2**22
"""A rank that prints without end shall fill neither the memory nor the disk: of a longer log the end is kept."""


def tail(log: Path) -> str:
    """The log, or its end."""
    with open(log, "rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - MOST_BYTES))
        return file.read().decode(errors="replace")


def keep_log(text: str, folder: Path, run_id: str) -> str:
    """Writes `folder/logs/RUN_ID.txt`; returns what to say of it: a full disk must not cost the record too."""
    kept = folder / "logs" / f"{run_id}.txt"
    try:
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(text, errors="replace")
    except OSError as error:
        return f"its log could not be kept: {error.strerror}"
    return f"log: logs/{kept.name}"

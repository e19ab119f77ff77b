"""Texts of others on their way to a terminal, a Markdown page or a spreadsheet.

A result set may come from anyone. Its texts are shown as they are, but for what would act instead of being read:
characters that steer a terminal become visible (`\\x1b`), and in Markdown what would break a table, become markup or
load an image is escaped.

CSV is for programs, so no text is changed there beyond that: an apostrophe before `=` would be a wrong value to all of
them but spreadsheets. Instead no text of others can stand first in a field, where a spreadsheet takes it for a formula:
specs begin with a letter or a digit, and reasons follow the name of their metric.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_MARKUP = re.compile(r"[\\`|<]|\]\(|\]\[")


def visible(text: str) -> str:
    """The text with every character that is not printable as its escape: `\\n`, `\\x1b`, `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def one_line(text: str) -> str:
    """The text with every run of white space as one space."""
    return " ".join(text.split())


def printable(value: Any, format: str) -> Any:
    """A value of a record or manifest with all its texts, keys too, fit for a report.

    Args:
        format: `json` leaves them as they are: see `as_json`.
    """
    if format == "json":
        return value
    if isinstance(value, str):
        return _markdown(visible(value)) if format == "markdown" else visible(value)
    if isinstance(value, Mapping):
        return {printable(key, format): printable(item, format) for key, item in value.items()}
    if isinstance(value, list):
        return [printable(item, format) for item in value]
    return value


def as_json(value: Any) -> str:
    """Indented JSON without a character that could act on a terminal. The escapes are JSON's own: nothing is lost."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, indent=2)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(char if char == "\n" or char.isprintable() else json.dumps(char)[1:-1] for char in text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode()


def _markdown(text: str) -> str:
    return _MARKUP.sub(lambda found: "".join(f"\\{char}" for char in found[0]), text)

"""A matrix as a file: TOML, a list of names for each axis, workloads and clusters, and numbers for the settings.

The reader of TOML keeps no lines, so they are looked for in the text: what is wrong with a value is told with the line
where it stands.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fsbench.cli.request import Asked, Request, check_key, texts_of
from fsbench.errors import UserError

LARGEST = 2**18
"""Bytes: ten thousand names."""
_PART_OF_A_KEY = r"""(?:[\w-]++|"(?:\\.|[^"\\\n]){0,99}+"|'[^'\n]{0,99}+')"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_PART_OF_A_KEY}(?:[ \t]*+\.[ \t]*+{_PART_OF_A_KEY}){{100}}")
"""A dotted key of a hundred parts: the memory that the reader of TOML takes grows with their square. (Longer parts
than these there can be too few of.)"""


def read_matrix(path: Path) -> Request:
    """What a matrix file asks for. Names are looked up later; each `Asked` knows its line.

    Raises:
        UserError: a file that cannot be read, is larger than `LARGEST` or is no TOML, an unknown key, or a value of the
            wrong type.
    """
    text = _read(path)
    if _LONG_KEY.search(text):
        raise UserError(f"{path}: nested too deeply")
    try:
        table = tomllib.loads(text)
        bare = re.sub("#.*", "", text)
        return {key: list(_asked(path, bare, key, value)) for key, value in table.items()}
    except tomllib.TOMLDecodeError as error:
        raise UserError(_malformed(path, text, error)) from None
    except RecursionError:
        raise UserError(f"{path}: nested too deeply") from None
    except ValueError:
        # Python's own words are about its limits.
        raise UserError(f"{path}: not TOML: a number has too many digits") from None


def _read(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise UserError(f"cannot read the matrix file {path}: {error.strerror}") from None
    if len(content) > LARGEST:
        raise UserError(f"{path}: larger than {LARGEST // 2**10} KiB, which no matrix needs")
    try:
        return content.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = 1 + content.count(b"\n", 0, error.start)
        raise UserError(f"{path}:{line}: not TOML: not UTF-8") from None


def _malformed(path: Path, text: str, error: tomllib.TOMLDecodeError) -> str:
    message, _, place = str(error).rpartition(" (at ")
    # Else it is "at end of document".
    numbers = re.fullmatch(r"line (\d+), column (\d+)\)", place)
    end = (1 + text.count("\n"), len(text) - text.rfind("\n"))
    line, column = numbers.groups() if numbers else end
    return f"{path}:{line}:{column}: not TOML: {message or error}"


def _asked(path: Path, bare: str, key: str, value: Any) -> Iterator[Asked]:
    """`bare`: the text of the file without comments."""
    found = re.search(rf"^[ \t]*\[*[ \t]*(['\"]?){re.escape(key)}\1[ \t]*[=.\]]", bare, re.MULTILINE)
    start = found.end() if found else None
    where = _where(path, bare, start)
    check_key(key, where)
    texts = texts_of(key, value, where)
    for text, place in zip(texts, _places(bare, start, _quoted(value)), strict=True):
        yield Asked(text, _where(path, bare, place))


def _quoted(value: Any) -> Sequence[str]:
    """What of each name stands in quotes: of a table, its first key."""
    names = value if isinstance(value, list) else [value]
    return [next(iter(name)) if isinstance(name, dict) else str(name) for name in names]


def _places(bare: str, start: int | None, texts: Sequence[str]) -> Iterator[int | None]:
    """Where each text stands in quotes, one after the other; the place before it for one that is not found."""
    for text in texts:
        quoted = re.compile(rf"(['\"]){re.escape(text)}\1")
        if start is not None and (found := quoted.search(bare, start)):
            start = found.end()
        yield start


def _where(path: Path, bare: str, place: int | None) -> str:
    if place is None:
        return str(path)
    line = 1 + bare.count("\n", 0, place)
    return f"{path}:{line}"

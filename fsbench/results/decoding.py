"""JSON of others as values that no later reader can trip over: finite, of a bounded size, nested to a bounded depth.

What this module refuses, `fsbench.results.schema` never lets into a file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

DEEPEST = 64
"""Levels of objects and lists inside each other. Reports call themselves once a level."""
LARGEST_INTEGER = 2**64
"""Whole numbers are smaller than this, by magnitude: every count, seed and number of bytes is."""


def decode(content: bytes) -> Any:
    """The value of a JSON text in UTF-8.

    Raises:
        ValueError: what is wrong with it, without quoting it.
    """
    try:
        value = json.loads(
            content.decode(), parse_constant=_refuse_constant, parse_float=_finite, parse_int=_bounded_integer
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    check_depth(value)
    return value


def check_depth(value: Any, left: int = DEEPEST) -> None:
    """Raises:
    ValueError: objects and lists lie inside each other deeper than `DEEPEST`.
    """
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else None
    if items is None:
        return
    if not left:
        raise ValueError(_TOO_DEEP)
    for item in items:
        check_depth(item, left - 1)


_TOO_DEEP = f"nested too deeply: more than {DEEPEST} levels"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number is too large for a float")
    return value


def _bounded_integer(digits: str) -> int:
    # Lengths first: Python refuses to read a number of thousands of digits.
    if len(digits) > 21 or abs(value := int(digits)) >= LARGEST_INTEGER:
        raise ValueError(f"a whole number is too large: {len(digits)} characters")
    return value

"""The multiplicative hash that deals the rows of a table to ranks: `row * multiplier(rows) % rows` is a permutation."""

from __future__ import annotations

import functools
import math

_GOLDEN = 0.6180339887498949


@functools.cache
def multiplier(rows: int) -> int:
    """The number nearest above the golden section of `rows` that is coprime to it (Knuth, TAOCP 3, 6.4)."""
    candidate = max(1, int(rows * _GOLDEN))
    while math.gcd(candidate, rows) != 1:
        candidate += 1
    return candidate

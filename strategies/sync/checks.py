"""What options of several strategies must satisfy."""

from __future__ import annotations


def check_share(name: str, value: float) -> None:
    """Raises:
    ValueError: not in (0, 1].
    """
    if not 0 < value <= 1:
        raise ValueError(f"{name} is {value}, expected more than 0 and at most 1")

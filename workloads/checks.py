"""Checks of options that several workloads have."""

from __future__ import annotations

from collections.abc import Iterable


def check_at_least_one(options: object, names: Iterable[str]) -> None:
    """Raises:
    ValueError: the first of these options that is less than 1.
    """
    for name in names:
        if (value := getattr(options, name)) < 1:
            raise ValueError(f"{name} is {value}, expected at least 1")


def check_positive(options: object, names: Iterable[str]) -> None:
    """Raises:
    ValueError: the first of these options that is not more than 0.
    """
    for name in names:
        if not (value := getattr(options, name)) > 0:
            raise ValueError(f"{name} is {value}, expected more than 0")

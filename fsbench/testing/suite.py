"""All checks of a strategy: which there are for its axis, and what they find."""

from __future__ import annotations

from collections.abc import Iterator

from fsbench.testing import collectives, embedding, every_axis, sharding, sync
from fsbench.testing.case import Case
from fsbench.testing.verdicts import Check, Verdict, judge

_OF_AXIS: dict[str, tuple[Check, ...]] = {
    "sharding": sharding.CHECKS,
    "embedding": embedding.CHECKS,
    "collectives": collectives.CHECKS,
    "sync": sync.CHECKS,
}


def checks_of(axis: str) -> tuple[Check, ...]:
    """The checks of a strategy on that axis, in the order in which they are best read."""
    return (*every_axis.CHECKS, *_OF_AXIS[axis])


def judge_all(case: Case) -> Iterator[Verdict]:
    """The verdicts, as they come."""
    for check in checks_of(case.axis):
        yield judge(check, case)

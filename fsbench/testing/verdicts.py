"""How a check is written and judged: a function of a case that returns, or raises what is wrong."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fsbench.testing.whereabouts import in_a_line

if TYPE_CHECKING:
    from fsbench.testing.case import Case

Check = Callable[["Case"], None]
"""`check_one_thing(case)`; its docstring's first line is the promise. Raises `Fault` or `Skip`."""


class Fault(Exception):
    """A promise is broken: how, in one line."""


class Skip(Exception):
    """A promise that is not made, or cannot be looked at: why, in one line."""


@dataclass(frozen=True)
class Verdict:
    """What a check found. `reason`: why it failed or was skipped."""

    check: str
    promise: str
    status: Literal["PASS", "FAIL", "SKIP"]
    reason: str | None = None


def judge(check: Check, case: Case) -> Verdict:
    """Runs one check. What the strategy itself raises when it is asked something is a fault too."""
    name, promise = name_of(check), (check.__doc__ or "").strip().partition("\n")[0]
    try:
        check(case)
    except Skip as skip:
        return Verdict(name, promise, "SKIP", str(skip))
    except Fault as fault:
        return Verdict(name, promise, "FAIL", str(fault))
    except Exception as error:
        return Verdict(name, promise, "FAIL", in_a_line(error))
    return Verdict(name, promise, "PASS")


def name_of(check: Check) -> str:
    """`check_an_empty_rank` as people read it."""
    return getattr(check, "__name__", "").removeprefix("check_").replace("_", " ")


def on_each_count(check: Callable[[Case, int], None]) -> Check:
    """A check that looks at one number of ranks after the other. What it finds is told with the number."""

    @functools.wraps(check)
    def each(case: Case) -> None:
        for ranks in case.counts:
            try:
                check(case, ranks)
            except Fault as fault:
                raise Fault(f"on {ranks} rank{'s' * (ranks > 1)}: {fault}") from fault

    return each

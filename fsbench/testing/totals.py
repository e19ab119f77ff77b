"""What a strategy promises that says it does not need what other ranks train: `needs_totals`."""

from __future__ import annotations

from fsbench.testing.case import Case
from fsbench.testing.verdicts import Fault, on_each_count


@on_each_count
def check_totals(case: Case, ranks: int) -> None:
    """It looks at the target count over all ranks only if `needs_totals` says so."""
    for rank, one in enumerate(case.trained(ranks)):
        if one.used_totals and not case.strategy.needs_totals:
            raise Fault(f"rank {rank}: it read counts.total, which is of one rank where `needs_totals` is False")

"""For authors of strategies: every promise of an axis' contract, checked on 1, 2 and 3 real ranks.

A test file of a plugin needs two lines:

    from fsbench.testing import strategy_checks

    test_round_robin = strategy_checks("round-robin")

pytest then shows one test a check, as `fsbench plugins check round-robin` shows one line. The checks are plain
functions in this package, one file an axis: they say what is looked at, and how.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def strategy_checks(name: str, axis: str | None = None) -> Callable[..., None]:
    """A test function, parametrised by the checks of an installed strategy, to be bound to a name that pytest collects.

    Args:
        name: `NAME` or `NAME:KEY=VALUE,...`, as on the command line.
        axis: needed where strategies of several axes have that name.

    Raises:
        UserError: no such strategy, or one of several axes.
    """
    import pytest

    from fsbench.testing.find import find_strategy
    from fsbench.testing.suite import checks_of
    from fsbench.testing.verdicts import judge, name_of

    case = find_strategy(name, axis)

    @pytest.mark.parametrize("check", checks_of(case.axis), ids=name_of)
    def test(check: Any) -> None:
        verdict = judge(check, case)
        if verdict.status == "SKIP":
            pytest.skip(str(verdict.reason))
        if verdict.status == "FAIL":
            pytest.fail(f"{verdict.promise}\n{verdict.reason}", pytrace=False)

    return test

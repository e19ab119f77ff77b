"""Every built-in strategy keeps every promise of its contract, as anyone's must."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from fsbench.axes import AXES
from fsbench.plugins import find_plugins
from fsbench.testing.find import find_strategy
from fsbench.testing.suite import judge_all

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(180)]

BUILT_IN = [(axis, plugin.name) for axis in AXES for plugin in find_plugins(axis) if plugin.distribution == "fsbench"]
WITH_OPTIONS = [("embedding", "plain:prefetch=1")]
"""What an option makes another strategy of: other lanes, another lookahead."""
NOT_CLAIMED = {"repeats", "equals reference", "equal counts", "workers"}
"""Promises that a strategy need not make: equality with the reference, equal counts, and several workers."""


@pytest.mark.parametrize(("axis", "name"), [*BUILT_IN, *WITH_OPTIONS])
def test_it_keeps_its_contract_on_1_2_and_3_ranks(axis, name):
    case = find_strategy(name, axis)
    if reason := case.strategy.requirements():
        pytest.skip(reason)
    verdicts = list(judge_all(case))
    assert [verdict for verdict in verdicts if verdict.status == "FAIL"] == []
    assert {verdict.check for verdict in verdicts if verdict.status == "SKIP"} <= NOT_CLAIMED

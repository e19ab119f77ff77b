"""Each check of `fsbench.testing` can fail: strategies that break one promise are found out by it, and by no other."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from fsbench.options import Spec
from fsbench.plugins import find_plugin
from fsbench.testing.case import Case
from fsbench.testing.pool import shared_pool
from fsbench.testing.suite import checks_of, judge_all
from fsbench.testing.verdicts import name_of
from tests.broken import BROKEN
from tests.fakes import install

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]

MODULES = {
    "heavy_plugin.py": "import torch\n",
    "printing_plugin.py": "print('hello')\n",
    "absent_plugin.py": "import nowhere_found\n",
}
SOURCE = '''
from tests.broken import Deal

class Mine(Deal):
    """Sound, but for its module."""
'''


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory):
    """The broken strategies, found through entry points as anyone's are."""
    site = tmp_path_factory.mktemp("site")
    points: dict[str, dict[str, str]] = {"sharding": {"hanging": "tests.broken:Hanging"}}
    for name, (axis, cls, *_) in BROKEN.items():
        points.setdefault(axis, {})[name] = f"tests.broken:{cls.__name__}"
    for module in MODULES:
        name = module.partition(".")[0]
        points["sharding"][name] = f"{name}:Mine"
    install(site, "broken-strategies", points, {name: source + SOURCE for name, source in MODULES.items()})
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        yield
    shared_pool().close_processes()


def failures(axis: str, name: str, **limits) -> dict[str, str]:
    """Reasons of the checks that fail on two ranks."""
    case = Case(find_plugin(axis, name), Spec(name), counts=[2], **limits)
    return {verdict.check: verdict.reason for verdict in judge_all(case) if verdict.status == "FAIL"}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_found_by_its_check_alone(name):
    axis, _, expected, saying = BROKEN[name]
    found = failures(axis, name)
    assert found.keys() == expected, found
    assert any(saying in reason for reason in found.values()), found


def test_a_strategy_that_hangs_is_reported_with_what_each_rank_was_at():
    (reason,) = failures("sharding", "hanging", limit_s=8).values()
    before, _, hanging = reason.partition("; ")
    assert before.startswith("on 2 ranks: not done after 8 s: rank 0: step ")
    assert "MainThread in wait (lanes.py:" in before
    assert hanging.startswith("rank 1: step ")
    assert "lane-shuffle in assign (broken.py:" in hanging


@pytest.mark.parametrize(
    ("name", "saying"),
    [
        ("heavy_plugin", "its module imports torch; do that inside the methods that need it"),
        ("printing_plugin", "it prints when it is imported: 'hello'"),
        ("absent_plugin", "(broken-strategies 1.0) cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_a_module_that_should_not_be_imported_is_found_by_imports_alone(name, saying):
    found = failures("sharding", name)
    assert found.keys() == {"imports"}
    assert saying in found["imports"]


def test_every_check_is_shown_to_fail():
    shown = {check for _, _, checks, _ in BROKEN.values() for check in checks} | {"imports"}
    for axis in ("sharding", "embedding", "collectives", "sync"):
        assert {name_of(check) for check in checks_of(axis)} <= shown

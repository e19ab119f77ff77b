"""What sync `grouped` is made of, without ranks: who has which parameter, names, order, replicas, syncs."""

from __future__ import annotations

from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from fsbench.axes import ServerContext, Sync
from fsbench.errors import DataError, UserError
from fsbench.options import Spec
from fsbench.plugins import create
from fsbench.roles import server_processes
from fsbench.train.lanes import ordered
from fsbench_strategies.sync.grouped_order import InOrder
from fsbench_strategies.sync.grouped_parameters import module_of, share_out
from fsbench_strategies.sync.grouped_whole import complete_syncs, whole_replicas

NAMES = ["body.0.weight", "body.0.bias", "head.weight", "head.bias", "scale"]
PATTERNS = ["*", "body.*", "*.bias", "head.weight", "[bh]*.weight", "none", "scal?"]


def grouped(groups: str) -> Any:
    return create("sync", Spec.parse(f"grouped:groups={groups}"))


# Who has which parameter.


@given(patterns=st.lists(st.sampled_from(PATTERNS), min_size=1, unique=True), names=st.permutations(NAMES))
def test_each_parameter_is_in_the_first_group_that_it_matches_and_each_group_has_one(patterns, names):
    expected: dict[str, list[str]] = {pattern: [] for pattern in patterns}
    stray = False
    for name in names:
        matching = [pattern for pattern in patterns if fnmatchcase(name, pattern)]
        stray |= not matching
        if matching:
            expected[matching[0]].append(name)
    if stray or [] in expected.values():
        with pytest.raises(UserError):
            share_out(patterns, names)
    else:
        assert share_out(patterns, names) == list(expected.values())


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["body.*", "*.bias"], "no pattern of body.*, *.bias matches head.weight, scale; '*' would match all others"),
        (["*", "tail"], "pattern 'tail' has no parameter: the parameters are body.0.weight, body.0.bias, head.weight,"),
        (["*", "body.*"], "pattern 'body.*' has no parameter: what it matches is in groups before it"),
        # Not of a part of a name, and not whatever its case.
        (["Body.*", "*"], "pattern 'Body.*' has no parameter: the parameters are"),
        (["ody", "*"], "pattern 'ody' has no parameter: the parameters are"),
    ],
)
def test_a_parameter_without_a_group_and_a_group_without_one_are_named(patterns, message):
    with pytest.raises(UserError) as error:
        share_out(patterns, NAMES)
    assert str(error.value).startswith(message)


class Nested(torch.nn.Module):
    """Parameters of its own before and after those of modules, one of which is there twice; and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.BatchNorm1d(3))
        self.head = torch.nn.Linear(3, 2)
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.tied = self.head


def test_a_strategy_finds_its_parameters_themselves_by_their_names_in_their_order_and_nothing_else():
    named = dict(Nested().named_parameters())
    few = {name: parameter for name, parameter in named.items() if not name.endswith("bias")}
    for chosen in (named, few):
        module = module_of(chosen)
        found = list(module.named_parameters())
        assert [name for name, _ in found] == list(chosen)
        assert all(parameter is chosen[name] for name, parameter in found)
        assert list(module.state_dict()) == list(chosen)


# What a group's strategy asks for.


def test_no_two_groups_share_a_lane_or_a_server_and_all_have_names_of_their_own():
    strategy = grouped("a=shadow-easgd:servers=2;b=shadow-easgd;c=shadow-ma;d=fr-ma;e=allreduce;*=allreduce")
    assert [lane.name for lane in strategy.lanes] == [
        *("group2-averaging", "group3-averaging", "group4-dense", "group5-dense"),
    ]
    assert {lane.waits_as for lane in strategy.lanes} == {"dense"}
    assert [lane.host for lane in strategy.lanes] == [True, True, False, False]
    assert [lane.name for lane in ordered(strategy.lanes)][-4:] == [lane.name for lane in strategy.lanes]
    processes = server_processes({"sync": strategy.roles()})
    assert [str(process) for process in processes] == [
        *("group0-sync-server 0", "group0-sync-server 1", "group1-sync-server 0"),
    ]


def test_a_server_is_that_of_its_group_and_knows_its_role_by_the_strategys_name():
    strategy = grouped("a=shadow-easgd:alpha=0.25;*=fr-easgd:alpha=0.75")
    asked = []
    for member in strategy.members:
        member.strategy.serve = lambda context, member=member: asked.append(
            (member.pattern, context.role, context.place)
        )
    for role in ("group1-sync-server", "group0-sync-server"):
        strategy.serve(ServerContext(role, 0, 1, ranks=2, dtype=torch.float64, seed=1, tables=()))
    assert asked == [("*", "sync-server", 0), ("a", "sync-server", 0)]


@pytest.mark.parametrize(
    ("groups", "uses", "exact", "needs_totals", "together"),
    [
        ("*=allreduce", {"collectives"}, True, True, True),
        ("a=allreduce;*=allreduce", {"collectives"}, True, True, False),
        ("a=none;*=shadow-easgd", set(), False, False, False),
        ("a=none;*=allreduce", {"collectives"}, False, True, False),
        ("*=shadow-easgd", set(), False, False, False),
    ],
)
def test_it_states_what_any_of_its_strategies_needs_and_what_all_of_them_keep(
    groups, uses, exact, needs_totals, together
):
    strategy = grouped(groups)
    stated = (strategy.uses, strategy.exact, strategy.needs_totals, strategy.together)
    assert stated == (uses, exact, needs_totals, together)


def test_what_one_strategy_lacks_here_all_of_it_lacks():
    strategy = grouped("a=shadow-ma;*=allreduce")
    assert strategy.requirements() is None
    strategy.members[0].strategy.requirements = lambda: "needs a second sun"
    assert strategy.requirements() == "group 'a': needs a second sun"


def test_all_are_closed_whatever_one_raises():
    strategy = grouped("a=none;b=none;*=none")
    closed = []

    def close(pattern):
        closed.append(pattern)
        if pattern == "b":
            raise ArithmeticError("b")

    for member in strategy.members:
        member.strategy.close = lambda pattern=member.pattern: close(pattern)
    with pytest.raises(ArithmeticError):
        strategy.close()
    assert set(closed) == {"a", "b", "*"}


@pytest.mark.parametrize(
    ("saved", "whose"),
    [
        ({"b": {"strategy": "none"}, "*": {"strategy": "none"}}, "b=none; *=none"),
        ({"*": {"strategy": "none"}, "a": {"strategy": "none"}}, "*=none; a=none"),
        ({"a": {"strategy": "fr-ma"}, "*": {"strategy": "none"}}, "a=fr-ma; *=none"),
        ({"steps": 3, "replicas": None, "exchange": {"central": None}}, "none"),
        ({}, "none"),
    ],
)
def test_a_checkpoint_of_other_groups_is_refused_in_a_line(saved, whose):
    with pytest.raises(DataError) as error:
        grouped("a=none;*=none").load_state_dict(saved)
    assert str(error.value) == f"the checkpoint is of groups {whose}, expected a=none; *=none"


# Gradients.


@given(arrivals=st.permutations(range(6)), count=st.integers(0, 6))
def test_gradients_are_passed_on_in_one_order_as_soon_as_that_allows_and_once_a_step(arrivals, count):
    told: list[int] = []
    gradients = InOrder(range(6), told.append)
    for _ in range(2):
        told.clear()
        for seen, gradient in enumerate(arrivals[:count], start=1):
            gradients.complete(gradient)
            came = set(arrivals[:seen])
            assert told == list(range(next((place for place in range(6) if place not in came), 6)))
        gradients.end()
        assert told == list(range(6))


# The whole.


def state(**values: float) -> dict[str, Any]:
    return {name.replace("_", "."): torch.tensor(value) for name, value in values.items()}


class Pair(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Parameter(torch.tensor(0.0)), torch.nn.Parameter(torch.tensor(0.0))
        self.register_buffer("seen", torch.tensor(7.0))
        self.a_again = self.a


def test_a_replica_of_the_whole_has_of_each_group_the_one_of_that_name_or_its_mean_or_its_headline():
    module, replicas = Pair(), {"trainer": state(a=1.0), "mean": state(a=2.0)}
    central = {"trainer": state(b=3.0), "mean": state(b=4.0), "central": state(b=5.0)}
    found = whole_replicas(module, [replicas, central])
    values = {name: (float(of["a"]), float(of["b"])) for name, of in found.items()}
    assert values == {"trainer": (1.0, 3.0), "mean": (2.0, 4.0), "central": (2.0, 5.0)}
    found = whole_replicas(module, [{"trainer": state(a=1.0)}, central])
    values = {name: (float(of["a"]), float(of["b"])) for name, of in found.items()}
    assert values == {"trainer": (1.0, 3.0), "mean": (1.0, 4.0), "central": (1.0, 5.0)}
    assert next(iter(found)) == "trainer"


def test_it_is_a_state_dict_of_the_module_with_buffers_and_other_names_of_one_parameter():
    module = Pair()
    (found,) = whole_replicas(module, [{"trainer": state(a=1.0)}, {"trainer": state(b=2.0)}]).values()
    assert {name: float(value) for name, value in found.items()} == {"a": 1.0, "b": 2.0, "seen": 7.0, "a_again": 1.0}
    module.load_state_dict(found)
    assert (module.a.item(), module.b.item()) == (1.0, 2.0)
    with torch.no_grad():
        module.b += 1
    assert float(found["b"]) == 2.0


def test_the_whole_has_synced_when_every_group_has_since_it_did_last():
    often, seldom = ([Sync(0, at_ns) for at_ns in times] for times in ((5, 15, 25, 35, 45, 55), (18, 19, 44)))
    found = list(complete_syncs([often, seldom], step_ends=[10, 20, 30, 40, 50]))
    assert [(sync.at_ns, sync.step) for sync in found] == [(18, 1), (25, 2), (44, 4)]
    assert {sync.spread for sync in found} == {None}


def test_it_never_has_where_a_group_never_does():
    assert list(complete_syncs([[Sync(0, 1), Sync(1, 2)], []], [1])) == []


@given(
    times=st.lists(st.lists(st.integers(0, 50), unique=True).map(sorted), min_size=1, max_size=3),
    ends=st.lists(st.integers(0, 50), unique=True).map(sorted),
)
def test_syncs_of_the_whole_are_in_order_and_between_two_of_them_every_group_syncs(times, ends):
    found = list(complete_syncs([[Sync(0, at_ns) for at_ns in of_group] for of_group in times], ends))
    assert found == sorted(found, key=lambda sync: (sync.step, sync.at_ns))
    assert len(found) <= min(map(len, times))
    for before, after in zip([SimpleNamespace(at_ns=-1), *found], found, strict=False):
        for of_group in times:
            assert any(before.at_ns <= at_ns <= after.at_ns for at_ns in of_group)

"""Sync `grouped` on real ranks: one group is its strategy alone, and several do not disturb one another."""

from __future__ import annotations

import functools
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from fsbench.axes import TargetCounts
from fsbench.errors import DataError, UserError
from fsbench.testing.find import find_strategy
from fsbench.testing.suite import judge_all
from fsbench.train import checkpoint
from fsbench.train.driver import Driver
from fsbench_workloads.dense import Dense
from tests import support
from tests.sync_cells import wait_for_syncs

pytestmark = pytest.mark.distributed
STEPS, BROKEN_AT = 7, 4
SHADOWS = "grouped:groups=left.*=shadow-ma:duty=1&write_back=delta;right.*=shadow-ma:duty=1&write_back=delta"


class TwoMLPs(torch.nn.Module):
    """Two models that have nothing in common but their inputs."""

    def __init__(self, left: torch.nn.Module, right: torch.nn.Module) -> None:
        super().__init__()
        self.left, self.right = left, right

    def forward(self, batch: Any, rows: Any) -> torch.Tensor:
        return self.left(batch, rows) + self.right(batch, rows)


class TwoHalves(Dense):
    def build_model(self, dtype: torch.dtype) -> torch.nn.Module:
        return TwoMLPs(super().build_model(dtype), super().build_model(dtype))


def opened(rank, ranks, sync):
    workload = TwoHalves(Dense.Options(batch=4, inputs=6, hidden=5, layers=1, dtype="float64"))
    workload.prepare(None, 3)
    return support.opened_cell(rank, ranks, workload, sync=sync)


def copied(state):
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def train(rank, ranks, sync, path=None, resumed=False):
    """Parameters, steps before each sync, and replicas after training; `path`: saved on the way, or gone on from."""
    with opened(rank, ranks, sync) as trainer:
        strategy = trainer.strategies.sync
        first = 0
        if resumed:
            for parameter in trainer.model.parameters():
                parameter.data.zero_()
            first = checkpoint.load(trainer, path)
        elif path:
            Driver(trainer, 0, BROKEN_AT).run()
            checkpoint.save(trainer, path, BROKEN_AT)
            first = BROKEN_AT
        Driver(trainer, first, STEPS).run()
        syncs = [sync.step for sync in strategy.syncs()]
        replicas = {name: copied(state) for name, state in strategy.replicas().items()}
        return copied(trainer.model.state_dict()), syncs, replicas


@pytest.fixture(scope="module")
def trained(ranks):
    """`trained(sync, count)`: what `train` returned on each rank. Each once."""
    return functools.cache(lambda sync, count=2: ranks.run(train, count, sync))


def assert_equal(ours, theirs, half=""):
    """To the last bit. `half`: of its parameters alone."""
    for name in (name for name in theirs if name.startswith(half)):
        assert torch.equal(ours[name], theirs[name]), name


@pytest.mark.parametrize(
    ("sync", "count"),
    [
        ("allreduce", 2),
        ("allreduce:bucket=64", 3),
        ("fr-ma:every=2", 2),
        ("diloco:every=3", 3),
        ("fr-easgd:every=2", 1),
    ],
)
def test_one_group_of_all_parameters_trains_as_its_strategy_does_alone_to_the_last_bit(trained, sync, count):
    found = trained(f"grouped:groups=*={sync.replace(',', '&')}", count)
    for (ours, syncs, replicas), (theirs, expected, others) in zip(found, trained(sync, count), strict=True):
        assert_equal(ours, theirs)
        assert syncs == expected != []
        assert list(replicas) == list(others)
        for name, state in others.items():
            assert_equal(replicas[name], state)


@pytest.mark.parametrize(
    ("left", "right", "count"),
    [
        ("allreduce", "fr-ma:every=2", 2),
        ("fr-bmuf:every=2,momentum=0.8", "allreduce:bucket=64", 2),
        ("fr-ma:every=2", "fr-ma:every=3,alpha=0.5", 2),
        ("none", "local-sgd:every=3", 2),
        # One rank: the order in which ranks come to the servers is nobody's.
        ("fr-easgd:every=2,servers=2", "fr-easgd:every=3", 1),
    ],
)
def test_each_of_two_groups_trains_as_if_all_were_under_its_strategy_where_they_have_nothing_in_common(
    trained, left, right, count
):
    both = f"grouped:groups=left.*={left};*={right}".replace(",", "&")
    alone = zip(trained(both, count), trained(left, count), trained(right, count), strict=True)
    for (ours, _, replicas), (lefts, _, left_replicas), (rights, _, right_replicas) in alone:
        assert_equal(ours, lefts, "left")
        assert_equal(ours, rights, "right")
        for name in replicas.keys() & left_replicas.keys():
            assert_equal(replicas[name], left_replicas[name], "left")
        for name in replicas.keys() & right_replicas.keys():
            assert_equal(replicas[name], right_replicas[name], "right")
        assert replicas.keys() == left_replicas.keys() | right_replicas.keys()


@pytest.mark.parametrize(
    ("groups", "steps"),
    [
        ("left.*=allreduce;*=fr-ma:every=2", [2, 4, 6]),
        ("left.*=fr-ma:every=2;*=fr-ma:every=3", [3, 6]),
        ("left.*=allreduce;*=none", []),
    ],
)
def test_the_replica_has_synced_when_both_groups_have(trained, groups, steps):
    assert [syncs for _, syncs, _ in trained(f"grouped:groups={groups}")] == [steps] * 2


GROUPS = "grouped:groups=left.*=fr-bmuf:alpha=0.4&every=3;*=fr-ma:every=2"


def test_resumed_each_group_goes_on_as_if_it_had_not_stopped_to_the_last_bit(ranks, tmp_path):
    """SGD, whose optimizer keeps nothing."""
    unbroken = ranks.run(train, 2, GROUPS, tmp_path / "state")
    resumed = ranks.run(train, 2, GROUPS, tmp_path / "state", True)
    for (ours, _, replicas), (theirs, _, others) in zip(resumed, unbroken, strict=True):
        assert_equal(ours, theirs)
        for name, state in others.items():
            assert_equal(replicas[name], state)


def evidence_of(rank, ranks, sync):
    with opened(rank, ranks, sync) as trainer:
        Driver(trainer, 0, STEPS).run()
        return trainer.strategies.sync.evidence()


def test_evidence_tells_of_each_group_what_synced_it_and_how_often(ranks):
    found = ranks.run(evidence_of, 2, GROUPS)[0]
    assert list(found) == ["left.*", "*"]
    group = found["left.*"]
    spread = group["evidence"].pop("spread_at_sync_p50")
    assert 0 < spread < 1
    assert group == {
        "strategy": "fr-bmuf:alpha=0.4,every=3",
        "origin": group["origin"],
        "options": group["options"],
        "lanes": ["group0-averaging"],
        "parameters": 6 * 5 + 5 + 5 + 1,
        "exact": False,
        "syncs": 2,
        "sync_gap_p50": 3,
        "evidence": {"rounds": 2},
    }
    assert group["origin"].startswith("fsbench ")
    assert (group["options"]["alpha"], group["options"]["momentum"]) == (0.4, 0.5)
    assert (found["*"]["syncs"], found["*"]["sync_gap_p50"]) == (3, 2)


def refused(rank, ranks, sync, path):
    """Why there is no trainer, or it does not load."""
    try:
        with opened(rank, ranks, sync) as trainer:
            checkpoint.load(trainer, path)
    except (DataError, UserError) as error:
        return str(error)
    return None


def test_what_does_not_fit_the_model_is_told_on_every_rank(ranks):
    for message in ranks.run(refused, 2, "grouped:groups=left.*=none;rigt.*=none", None):
        assert message.startswith("no pattern of left.*, rigt.* matches right.layers.0.weight, right.layers.0.bias, ")


# In the background.


def take_a_step(trainer, step):
    """Without the loader, in which ranks might meet: by gradients of 1 for each target."""
    strategy = trainer.strategies.sync
    for parameter in trainer.model.parameters():
        parameter.grad.fill_(1)
    strategy.after_backward(step, TargetCounts(1, 1))
    strategy.before_step()
    trainer.optimizer.step()
    strategy.after_step()


def train_unevenly(rank, ranks, sync):
    """Rank 0 takes 60 steps, and more until each group has synced three times; rank 1 takes none, rank 2 ten. Syncs by
    group; how far parameters went, and steps."""
    with opened(rank, ranks, sync) as trainer:
        members, steps = trainer.strategies.sync.members, [60, 0, 10][rank]
        before = copied(trainer.model.state_dict())
        for step in range(steps):
            take_a_step(trainer, step)
        if rank == 0:
            for member in members:
                wait_for_syncs(member.strategy, 3)
        trainer.strategies.sync.flush()
        moved = [float((value - before[name]).abs().max()) for name, value in trainer.model.state_dict().items()]
        return [len(member.strategy.syncs()) for member in members], moved, steps


@pytest.mark.parametrize("count", [2, 3])
def test_ranks_may_take_different_numbers_of_steps_or_none_and_each_group_ends_in_one_round(ranks, count):
    rounds = [syncs for syncs, *_ in ranks.run(train_unevenly, count, SHADOWS)]
    assert rounds == [rounds[0]] * count
    assert min(rounds[0]) >= 3


def test_a_rank_that_has_ended_counts_in_no_group_any_more(ranks):
    """Rank 0 averages with nobody, and by `delta` that leaves it where it is."""
    _, moved, steps = ranks.run(train_unevenly, 2, SHADOWS)[0]
    assert moved == pytest.approx([steps * 0.01] * len(moved), rel=1e-9)


def fail_in_the_background(rank, ranks, sync):
    """What training raised, and whether it was before its end."""
    with opened(rank, ranks, sync) as trainer:

        def meet(**how):
            raise RuntimeError("the background of the right half broke")

        trainer.strategies.sync.members[1].strategy.exchange.meet = meet
        driver = Driver(trainer, 0, 10_000)
        with pytest.raises(RuntimeError) as error:
            driver.run()
        return str(error.value), driver.step < 10_000


def test_what_fails_in_the_background_of_one_group_is_raised_by_training_and_the_other_ends(ranks):
    assert ranks.run(fail_in_the_background, 2, SHADOWS) == [("the background of the right half broke", True)] * 2


def train_at_servers(rank, ranks, sync):
    """Names of the lanes to servers; syncs by group; names of the replicas."""
    with opened(rank, ranks, sync) as trainer:
        strategy = trainer.strategies.sync
        Driver(trainer, 0, STEPS).run()
        lanes = [lane.name for of_role in trainer.context.servers.values() for lane in of_role]
        return lanes, [len(member.strategy.syncs()) for member in strategy.members], list(strategy.replicas())


def test_two_groups_meet_central_copies_of_their_own(ranks):
    sync = "grouped:groups=left.*=fr-easgd:every=2&servers=2;*=shadow-easgd:duty=1"
    for lanes, syncs, replicas in ranks.run(train_at_servers, 2, sync):
        assert lanes == ["group0-sync-server-0", "group0-sync-server-1", "group1-sync-server-0"]
        assert syncs[0] == 3
        assert syncs[1] > 0
        assert replicas == ["trainer", "mean", "central"]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_mixture_keeps_the_contract_on_1_2_and_3_ranks():
    sync = "grouped:groups=even.0.*=shadow-ma:duty=1;even.2.*=fr-easgd:every=2;*=allreduce"
    verdicts = list(judge_all(find_strategy(sync, "sync")))
    assert [verdict for verdict in verdicts if verdict.status == "FAIL"] == []

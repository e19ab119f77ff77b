"""Strategies whose ranks step on their own, on real ranks: what training with them makes of the parameters."""

import functools
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests import support  # noqa: E402
from tests.sync_cells import DENSE, opened, parameters, wait_for_syncs  # noqa: E402

pytestmark = pytest.mark.distributed
UNTHROTTLED = "shadow-ma:duty=1,alpha=1"


def trained_by(rank, ranks, sync, steps, workload=DENSE, all_on=None):
    from fsbench.train.driver import Driver

    chosen = None if all_on is None else support.AllOnOne(all_on)
    with opened(rank, ranks, sync, workload, sharding_object=chosen) as trainer:
        before = [p.data_ptr() for p in trainer.model.parameters()]
        driver = Driver(trainer, 0, steps)
        driver.run()
        moved = before != [p.data_ptr() for p in trainer.model.parameters()]
        syncs = [sync.step for sync in trainer.strategies.sync.syncs()]
        replicas = {name: dict(state) for name, state in trainer.strategies.sync.replicas().items()}
        return parameters(trainer), moved, syncs, replicas


@pytest.mark.parametrize("count", [2, 3])
def test_averaging_after_every_sgd_step_on_equal_shards_equals_summed_gradients(ranks, count):
    reference = ranks.run(trained_by, count, "allreduce", 20)
    found = ranks.run(trained_by, count, "fr-ma:every=1", 20)
    for (ours, moved, syncs, _), (theirs, *_) in zip(found, reference, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
        assert not moved
        assert syncs == list(range(1, 21))


def test_a_rank_without_a_sample_weighs_as_much_in_the_average_as_one_with_all(ranks):
    """Two ranks of which one stands still go half the way of each step: as one with half the learning rate."""
    reference = ranks.run(trained_by, 2, "allreduce", 20, DENSE + ",lr=0.05", 1)
    found = ranks.run(trained_by, 2, "fr-ma:every=1", 20, DENSE + ",lr=0.1", 1)
    for (ours, *_), (theirs, *_) in zip(found, reference, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_the_foreground_twin_syncs_every_k_own_steps(ranks):
    (first, _, syncs, _), (second, *_) = ranks.run(trained_by, 2, "fr-ma:every=5", 12)
    assert syncs == [5, 10]
    assert not first.equal(second)  # two local steps since


def test_without_synchronisation_replicas_of_different_shards_part(ranks):
    (first, moved, syncs, replicas), (second, *_, others) = ranks.run(trained_by, 2, "none", 5)
    assert not first.equal(second)
    assert not moved
    assert syncs == []
    for name, tensor in replicas["trainer"].items():
        assert tensor.equal(others["trainer"][name])
        assert replicas["mean"][name].equal(others["mean"][name])
    assert torch.cat([t.flatten() for t in replicas["trainer"].values()]).equal(first)
    mean = torch.cat([t.flatten() for t in replicas["mean"].values()])
    torch.testing.assert_close(mean, (first + second) / 2)


@pytest.mark.parametrize(
    "sync",
    [UNTHROTTLED, "shadow-ma:duty=1,write_back=delta", "shadow-ma", "shadow-bmuf:duty=1", "shadow-easgd:duty=1"],
)
@pytest.mark.parametrize("workload", [DENSE, support.TINY_LONG])
def test_a_shadow_syncs_while_training_goes_on_and_leaves_storage_in_place(ranks, sync, workload):
    found = ranks.run(trained_by, 2, sync, 30, workload)
    rounds = [len(syncs) for _, _, syncs, _ in found]
    assert min(rounds) > 0
    assert rounds[0] == rounds[1] or sync.startswith("shadow-easgd")
    assert not any(moved for _, moved, _, _ in found)
    assert all(torch.isfinite(values).all() for values, *_ in found)


def meet_once(rank, ranks, sync):
    """Parameters of each rank before and after a round in which nobody trains; what torch's averager makes of them. Of
    the background more than one round may come, unless `sync` holds the next back."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    from fsbench.axes import TargetCounts

    with opened(rank, ranks, sync) as trainer:
        strategy = trainer.strategies.sync
        strategy.flat.values += (rank + 1) ** 2  # none at the mean
        before = parameters(trainer)
        strategy.after_backward(0, TargetCounts(1, 1))
        strategy.after_step()
        wait_for_syncs(strategy, 1)
        strategy.flush()
        after = parameters(trainer)
    reference = [torch.nn.Parameter(before.clone())]
    reference[0].grad = torch.zeros_like(reference[0])
    PeriodicModelAverager(period=1).average_parameters(reference)
    return before, after, reference[0].detach()


@pytest.mark.parametrize("sync", [UNTHROTTLED, "fr-ma:every=1", "local-sgd:every=1", "shadow-bmuf:alpha=1,momentum=0"])
def test_a_full_step_to_the_mean_while_nobody_trains_is_the_arithmetic_mean_and_torchs_averager(ranks, sync):
    found = ranks.run(meet_once, 3, sync)
    mean = torch.stack([before for before, *_ in found]).mean(0)
    for _, after, reference in found:
        torch.testing.assert_close(after, mean)
        torch.testing.assert_close(after, reference)


@pytest.mark.parametrize(
    ("rule", "options", "count"),
    [
        ("ma", "alpha=0.3", 3),
        ("bmuf", "alpha=0.3,momentum=0.5,step_size=0.7,nesterov=true", 3),
        # One rank: the order in which ranks come to the servers is nobody's.
        ("easgd", "alpha=0.3,servers=2,order=symmetric", 1),
        ("easgd", "alpha=0.3,order=push-pull", 1),
    ],
)
def test_while_nobody_trains_a_round_in_the_background_is_one_of_its_foreground_twin(ranks, rule, options, count):
    foreground = ranks.run(meet_once, count, f"fr-{rule}:{options},every=1")
    for write_back in ("pull", "delta"):
        background = ranks.run(meet_once, count, f"shadow-{rule}:{options},write_back={write_back},min_interval=3600")
        for (before, ours, _), (_, theirs, _) in zip(background, foreground, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
            assert not ours.allclose(before)


def learn_in_flight(rank, ranks, sync):
    """Parameters that were sent in a round, what was learned before the answer came, parameters after it, and the lag
    of the round: two steps were taken meanwhile.

    The next round is the last, in which the ranks only vote: `sync` must hold it back until then.
    """
    from fsbench.axes import TargetCounts

    with opened(rank, ranks, sync) as trainer:
        strategy, all_reduce = trainer.strategies.sync, trainer.strategies.collectives.all_reduce
        strategy.flat.values += rank
        sent, learned = parameters(trainer), torch.linspace(0, rank + 1, len(strategy.flat.values), dtype=torch.float64)

        def learning_meanwhile(lane, tensor, *, kind):
            handle = all_reduce(lane, tensor, kind=kind)
            if not strategy.syncs():
                strategy.flat.values += learned
                strategy.steps += 2
            return handle

        trainer.strategies.collectives.all_reduce = learning_meanwhile
        strategy.after_backward(0, TargetCounts(1, 1))
        wait_for_syncs(strategy, 1)
        strategy.flush()
        return sent, learned, parameters(trainer), strategy.syncs()[0].lag


@pytest.mark.parametrize(("write_back", "kept"), [("pull", 0.7), ("delta", 1.0)])
def test_a_shadow_moves_replicas_by_alpha_and_keeps_of_what_is_in_flight_what_its_write_back_does(
    ranks, write_back, kept
):
    found = ranks.run(learn_in_flight, 2, f"shadow-ma:alpha=0.3,write_back={write_back},min_interval=3600")
    mean = torch.stack([sent for sent, *_ in found]).mean(0)
    for sent, learned, after, lag in found:
        torch.testing.assert_close(after, sent + 0.3 * (mean - sent) + kept * learned)
        assert lag == 2


def round_in_every_step(rank, ranks, sync, all_on=None):
    """Parameters before and after five steps, and how many rounds there were. In each step but the first, one writes
    between forward and backward."""
    from fsbench.train.driver import Driver

    chosen = None if all_on is None else support.AllOnOne(all_on)
    with opened(rank, ranks, sync, support.TINY_LONG, sharding_object=chosen) as trainer:
        strategy, driver, before = trainer.strategies.sync, Driver(trainer, 0, 5), parameters(trainer)

        def wait_for_a_round(*_):
            # The first may have been written before the forward pass.
            if driver.step:
                wait_for_syncs(strategy, len(strategy.syncs()) + 2)

        trainer.model.register_forward_hook(wait_for_a_round)
        driver.run()
        return before, parameters(trainer), len(strategy.syncs())


@pytest.mark.parametrize("write_back", ["pull", "delta"])
@pytest.mark.parametrize("shadow", ["shadow-ma", "shadow-bmuf", "shadow-easgd"])
def test_writes_between_forward_and_backward_go_unnoticed_by_autograd(ranks, shadow, write_back):
    for _, after, rounds in ranks.run(round_in_every_step, 2, f"{shadow}:duty=1,write_back={write_back}"):
        assert torch.isfinite(after).all()
        assert rounds >= 2 * 4


@pytest.mark.parametrize("shadow", ["shadow-ma", "shadow-bmuf", "shadow-easgd"])
def test_a_rank_without_a_sample_learns_from_the_background_alone(ranks, shadow):
    (before, after, _), _ = ranks.run(round_in_every_step, 2, f"{shadow}:duty=1,write_back=delta", 1)
    assert not after.equal(before)
    assert torch.isfinite(after).all()


@dataclass
class Accounts:
    """What one rank knows of eight steps that train tables too. `sent`: bytes of dense parameters by lane, those that
    servers sent included; `numel`: dense parameters; `kept`: what an exchange holds besides the replicas."""

    steps: list[int]
    sent: dict[str, int]
    numel: int
    kept: dict
    cost: Any
    cpu_s: float | None


def keep_accounts(rank, ranks, sync):
    from fsbench.train.driver import Driver

    with opened(rank, ranks, sync, support.TINY_LONG) as trainer:
        strategy, driver = trainer.strategies.sync, Driver(trainer, 0, 8)

        def wait_for_a_round(*_):
            if driver.step and sync.startswith("shadow"):
                wait_for_syncs(strategy, len(strategy.syncs()) + 1)

        trainer.model.register_forward_hook(wait_for_a_round)
        driver.run()
        sent = {name: lane.log.sent().get("dense", 0) for name, lane in trainer.context.lanes.items()}
        return Accounts(
            [one.step for one in strategy.syncs()],
            {name: size for name, size in sent.items() if size},
            len(parameters(trainer)),
            strategy.state_dict()["exchange"],
            strategy.exchange.cost,
            strategy.evidence().get("cpu_s"),
        )


AVERAGED = ["shadow-ma:duty=1", "shadow-bmuf:duty=1", "fr-ma:every=3", "fr-bmuf:every=3", "diloco:every=3"]
ELASTIC = ["shadow-easgd:duty=1,servers=2", "fr-easgd:every=3,servers=3"]


@pytest.fixture(scope="module")
def accounts(ranks):
    """By strategy, those of three ranks."""
    return functools.cache(lambda sync: ranks.run(keep_accounts, 3, sync))


@pytest.mark.parametrize("sync", AVERAGED)
def test_a_round_of_averaging_sends_the_dense_parameters_and_seven_numbers_of_three_ranks(accounts, sync):
    """And the last one of the background, in which ranks only vote, as much."""
    for one in accounts(sync):
        rounds = len(one.steps) + sync.startswith("shadow")
        assert one.sent == {"averaging": rounds * (2 * 8 * (one.numel + 7) * 2 // 3)}


@pytest.mark.parametrize("sync", ELASTIC)
def test_a_round_with_the_servers_sends_every_dense_parameter_there_and_back_in_slices(accounts, sync):
    for one in accounts(sync):
        slices = torch.empty(one.numel).tensor_split(int(sync[-1]))
        lanes = {f"sync-server-{place}": len(one.steps) * 2 * 8 * len(part) for place, part in enumerate(slices)}
        assert one.sent == lanes


@pytest.mark.parametrize("sync", [*AVERAGED, *ELASTIC])
def test_syncs_tell_the_own_steps_before_each_and_all_ranks_that_average_as_many(accounts, sync):
    everyone = accounts(sync)
    for one in everyone:
        assert one.steps == sorted(one.steps)
        assert one.steps == [3, 6] if "every" in sync else len(one.steps) >= 7
    assert sync in ELASTIC or len({len(one.steps) for one in everyone}) == 1


@pytest.mark.parametrize("sync", [*AVERAGED, *ELASTIC])
def test_global_copy_and_momentum_are_the_same_on_every_rank_to_the_bit(accounts, sync):
    first, *others = ({name: t.numpy().tobytes() for name, t in one.kept.items()} for one in accounts(sync))
    assert others == [first, first]
    names = {"central", "velocity"} if "bmuf" in sync or "diloco" in sync else {"central"} if sync in ELASTIC else set()
    assert first.keys() == names


def test_the_background_reckons_with_what_rounds_cost_of_all_ranks_that_meet_in_them(accounts):
    for sync in ("shadow-ma:duty=1", "shadow-bmuf:duty=1", "shadow-easgd:duty=1,servers=2"):
        assert all(min(one.cpu_s, one.cost.cpu_s, one.cost.wall_s) > 0 for one in accounts(sync)), sync
        assert sync in ELASTIC or len({one.cost for one in accounts(sync)}) == 1


def threads_and_cpu(rank, ranks):
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks, DENSE, sync="shadow-ma")
    lanes = trainer.context.lanes
    lane = lanes["averaging"]
    before = lane.cpu_ns()
    payload = torch.zeros(2_000_000)
    trainer.strategies.collectives.all_reduce(lane, payload, kind="dense").wait()
    spent = lane.cpu_ns() - before
    groups = [one.threads for one in lanes.values()]
    close_trainer(trainer)
    return [len(threads) for threads in groups], len(frozenset().union(*groups)), spent


def test_a_lane_knows_its_own_threads_and_gloos_and_what_they_cost(ranks):
    for sizes, together, spent in ranks.run(threads_and_cpu, 2):
        assert min(sizes) >= 2
        assert together == sum(sizes)
        assert spent > 0


def session_of(rank, ranks, sync, folder):
    from fsbench.launch.heartbeat import Heartbeat
    from fsbench.train.session import TrainingRun
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks, DENSE, sync=sync)
    finished = TrainingRun(trainer, 6, Heartbeat(folder, rank)).execute()
    operations = trainer.context.lanes["shuffle"].log.operations()
    close_trainer(trainer)
    stats = [(step.samples.tolist(), step.tokens.tolist(), step.cost.tolist()) for step in finished.stats]
    return stats, finished.losses[0], operations, finished.replica_spread


def test_ranks_that_need_nothing_of_each_other_load_apart_and_are_accounted_for_all_the_same(ranks, tmp_path):
    together = ranks.run(session_of, 2, "allreduce", tmp_path)
    apart = ranks.run(session_of, 2, "none", tmp_path)
    for (stats, loss, operations, spread), (expected, first_loss, exchanged, none) in zip(apart, together, strict=True):
        assert stats == expected
        assert loss == pytest.approx(first_loss)  # of the first step, before replicas part
        assert not operations
        assert exchanged
        assert spread > 1e-6 > none


def run_of(rank, ranks, sync, folder):
    """On rank 0 its report."""
    from fsbench.launch.heartbeat import Heartbeat
    from fsbench.train.report import build_report
    from fsbench.train.session import TrainingRun

    with opened(rank, ranks, sync) as trainer:
        finished = TrainingRun(trainer, 12, Heartbeat(folder, rank)).execute()
        return build_report(trainer, finished), len(parameters(trainer))


@pytest.mark.parametrize("sync", ["fr-ma:every=2", "fr-easgd:every=2,servers=2"])
def test_a_run_records_the_gap_between_syncs_and_what_they_sent_but_not_how_the_central_copy_began(
    ranks, tmp_path, sync
):
    """A round comes every second step, and two ranks send each parameter, to the servers and back or once."""
    (report, numel), _ = ranks.run(run_of, 2, sync, tmp_path)
    metrics = report["metrics"]
    sent = metrics["bytes_by_class"]
    assert metrics["sync_gap_p50"] == 2
    assert sent["dense"] == 8 * (2 * numel if "easgd" in sync else numel + 5)
    assert metrics["dense_bytes_per_step"] == sent["dense"] + sent.get("requests", 0)

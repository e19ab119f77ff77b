"""Strategies whose ranks step on their own, on real ranks."""

import threading
from contextlib import suppress

import pytest

torch = pytest.importorskip("torch")

from tests import support  # noqa: E402

pytestmark = pytest.mark.distributed
DENSE = "dense:batch=4,inputs=6,hidden=5,layers=1,dtype=float64"
UNTHROTTLED = "shadow-ma:duty=1,alpha=1"


def parameters(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def trained_by(rank, ranks, sync, steps, workload=DENSE, all_on=None):
    from fsbench.train.driver import Driver
    from fsbench.train.trainer import close_trainer

    chosen = None if all_on is None else support.AllOnOne(all_on)
    trainer = support.open_cell(rank, ranks, workload, sync=sync, sharding_object=chosen)
    before = [p.data_ptr() for p in trainer.model.parameters()]
    driver = Driver(trainer, 0, steps)
    driver.run()
    moved = before != [p.data_ptr() for p in trainer.model.parameters()]
    syncs = [sync.step for sync in trainer.strategies.sync.syncs()]
    replicas = {name: dict(state) for name, state in trainer.strategies.sync.replicas().items()}
    close_trainer(trainer)
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


@pytest.mark.parametrize("sync", [UNTHROTTLED, "shadow-ma:duty=1,write_back=delta", "shadow-ma"])
@pytest.mark.parametrize("workload", [DENSE, support.TINY_LONG])
def test_a_shadow_averages_while_training_goes_on_and_leaves_storage_in_place(ranks, sync, workload):
    found = ranks.run(trained_by, 2, sync, 30, workload)
    rounds = [len(syncs) for _, _, syncs, _ in found]
    assert rounds[0] == rounds[1] > 0
    assert not any(moved for _, moved, _, _ in found)
    assert all(torch.isfinite(values).all() for values, *_ in found)


def average_paused_replicas(rank, ranks, sync):
    """Parameters of each rank before and after rounds in which nobody trains; what torch's averager makes of them."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    from fsbench.axes import TargetCounts
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks, DENSE, sync=sync)
    strategy = trainer.strategies.sync
    strategy.flat.values += rank
    before = parameters(trainer).clone()
    strategy.after_backward(0, TargetCounts(1, 1))
    while not strategy.syncs():
        pass
    strategy.flush()
    close_trainer(trainer)
    reference = [torch.nn.Parameter(before.clone())]
    reference[0].grad = torch.zeros_like(reference[0])
    PeriodicModelAverager(period=1).average_parameters(reference)
    return before, parameters(trainer), reference[0].detach()


def test_a_paused_shadow_with_alpha_1_is_the_arithmetic_mean_and_torchs_averager(ranks):
    found = ranks.run(average_paused_replicas, 3, UNTHROTTLED)
    mean = torch.stack([before for before, *_ in found]).mean(0)
    for _, after, reference in found:
        torch.testing.assert_close(after, mean)
        torch.testing.assert_close(after, reference)


def learn_in_flight(rank, ranks, sync):
    """Parameters that were sent in a round, what was learned before the answer came, and parameters after it.

    The next round is the last, in which the ranks only vote: `sync` must hold it back until then.
    """
    from fsbench.axes import TargetCounts
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks, DENSE, sync=sync)
    strategy, all_reduce = trainer.strategies.sync, trainer.strategies.collectives.all_reduce
    strategy.flat.values += rank
    sent, learned = parameters(trainer), torch.linspace(0, rank + 1, len(strategy.flat.values), dtype=torch.float64)

    def learning_meanwhile(lane, tensor, *, kind):
        handle = all_reduce(lane, tensor, kind=kind)
        if not strategy.syncs():
            strategy.flat.values += learned
        return handle

    trainer.strategies.collectives.all_reduce = learning_meanwhile
    strategy.after_backward(0, TargetCounts(1, 1))
    while not strategy.syncs():
        pass
    strategy.flush()
    close_trainer(trainer)
    return sent, learned, parameters(trainer)


@pytest.mark.parametrize(("write_back", "kept"), [("pull", 0.7), ("delta", 1.0)])
def test_a_shadow_moves_replicas_by_alpha_and_keeps_of_what_is_in_flight_what_its_write_back_does(
    ranks, write_back, kept
):
    found = ranks.run(learn_in_flight, 2, f"shadow-ma:alpha=0.3,write_back={write_back},min_interval=3600")
    mean = torch.stack([sent for sent, *_ in found]).mean(0)
    for sent, learned, after in found:
        torch.testing.assert_close(after, sent + 0.3 * (mean - sent) + kept * learned)


def round_in_every_step(rank, ranks, sync, all_on=None):
    """Parameters before and after five steps, and how many rounds there were. In each step but the first, one writes
    between forward and backward."""
    from fsbench.train.driver import Driver
    from fsbench.train.trainer import close_trainer

    chosen = None if all_on is None else support.AllOnOne(all_on)
    trainer = support.open_cell(rank, ranks, sync=sync, sharding_object=chosen)
    strategy, driver, before = trainer.strategies.sync, Driver(trainer, 0, 5), parameters(trainer)

    def wait_for_a_round(*_):
        # A sync counts before it is written: the second tells that the first was.
        seen = len(strategy.syncs())
        while driver.step and len(strategy.syncs()) < seen + 2:
            pass

    trainer.model.register_forward_hook(wait_for_a_round)
    driver.run()
    close_trainer(trainer)
    return before, parameters(trainer), len(strategy.syncs())


@pytest.mark.parametrize("write_back", ["pull", "delta"])
def test_writes_between_forward_and_backward_go_unnoticed_by_autograd(ranks, write_back):
    for _, after, rounds in ranks.run(round_in_every_step, 2, f"shadow-ma:duty=1,write_back={write_back}"):
        assert torch.isfinite(after).all()
        assert rounds >= 2 * 4


def test_a_rank_without_a_sample_learns_from_the_background_alone(ranks):
    (before, after, _), _ = ranks.run(round_in_every_step, 2, "shadow-ma:duty=1,write_back=delta", 1)
    assert not after.equal(before)
    assert torch.isfinite(after).all()


def train_unevenly(rank, ranks, sync):
    """Ten times as many steps on rank 0 as on the others, without the loader, which keeps ranks in step."""
    from fsbench.axes import TargetCounts
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks, DENSE, sync=sync)
    strategy = trainer.strategies.sync
    for step in range(100 if rank == 0 else 10 * (rank - 1)):
        strategy.flat.gradients.normal_()
        strategy.after_backward(step, TargetCounts(1, 1))
        strategy.before_step()
        trainer.optimizer.step()
        strategy.after_step()
    strategy.flush()
    close_trainer(trainer)
    return len(strategy.syncs())


def test_ranks_may_take_different_numbers_of_steps_or_none(ranks):
    assert len(set(ranks.run(train_unevenly, 2, UNTHROTTLED))) == 1


def fail_in_the_background(rank, ranks):
    from fsbench.train.driver import Driver
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks, DENSE, sync=UNTHROTTLED)

    def all_reduce(lane, tensor, *, kind):
        raise RuntimeError("the background broke")

    trainer.strategies.collectives.all_reduce = all_reduce
    driver = Driver(trainer, 0, 10_000)
    try:
        driver.run()
    except RuntimeError as error:
        message = str(error)
    close_trainer(trainer)
    return message, driver.step


def test_what_fails_in_the_background_is_raised_by_training_soon(ranks):
    for message, step in ranks.run(fail_in_the_background, 2):
        assert message == "the background broke"
        assert step < 10_000


def fail_in_a_step(rank, ranks):
    from fsbench.train.driver import Driver
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks, DENSE, sync="shadow-ma")
    driver = Driver(trainer, 0, 20)

    def explode(step):
        if step == 7:
            raise ArithmeticError

    with suppress(ArithmeticError):
        driver.run(before_step=explode)
    close_trainer(trainer)
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("lane-")]


def test_after_a_failed_step_closing_ends_the_background(ranks):
    assert ranks.run(fail_in_a_step, 2) == [[], []]


def threads_and_cpu(rank, ranks):
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks, DENSE, sync="shadow-ma")
    lanes = trainer.context.lanes
    lane = lanes["shadow"]
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


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("alpha=0", "alpha is 0.0, expected more than 0 and at most 1"),
        ("duty=1.5", "duty is 1.5, expected more than 0 and at most 1"),
        ("min_interval=-1", "min_interval is -1.0, expected 0 seconds or more"),
        ("write_back=push", "write_back"),
    ],
)
def test_wrong_options_are_refused(option, message):
    from fsbench.errors import UserError
    from fsbench.options import Spec
    from fsbench.plugins import create

    with pytest.raises(UserError, match=message):
        create("sync", Spec.parse(f"shadow-ma:{option}"))


def test_the_pause_keeps_the_slowest_ranks_rounds_within_the_duty():
    from fsbench.options import Spec
    from fsbench.plugins import create
    from fsbench_strategies.sync.averaging import Round

    average = Round(torch.zeros(3), 0, 2)
    average.notes[:] = torch.tensor([[0.001, 0.030], [0.004, 0.010]])  # CPU and wall seconds

    def pause(options):
        return create("sync", Spec.parse(f"shadow-ma:{options}"))._pause(average)

    assert pause("duty=0.05") == pytest.approx(0.004 / 0.05 - 0.010)
    assert pause("duty=1") == 0
    assert pause("duty=0.05,min_interval=0.5") == 0.5


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

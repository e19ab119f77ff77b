"""Strategies whose ranks step on their own, on real ranks."""

import threading
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from fsbench.errors import UserError  # noqa: E402
from tests import support  # noqa: E402

pytestmark = pytest.mark.distributed
DENSE = "dense:batch=4,inputs=6,hidden=5,layers=1,dtype=float64"
UNTHROTTLED = "shadow-ma:duty=1,alpha=1"
AVERAGING = ("shadow-ma", "shadow-bmuf")
SHADOWS = (*AVERAGING, "shadow-easgd:servers=2")


@contextmanager
def opened(rank, ranks, sync, workload=DENSE, **chosen):
    """A trainer, with the servers that it asks for."""
    from fsbench.options import Spec
    from fsbench.plugins import create

    prepared = create("workloads", Spec.parse(workload))
    prepared.prepare(None, 3)
    with support.opened_cell(rank, ranks, prepared, sync=sync, **chosen) as trainer:
        yield trainer


def parameters(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


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


def average_paused_replicas(rank, ranks, sync):
    """Parameters of each rank before and after rounds in which nobody trains; what torch's averager makes of them."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    from fsbench.axes import TargetCounts

    with opened(rank, ranks, sync) as trainer:
        strategy = trainer.strategies.sync
        strategy.flat.values += rank
        before = parameters(trainer).clone()
        strategy.after_backward(0, TargetCounts(1, 1))
        while not strategy.syncs():
            pass
        strategy.flush()
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

    with opened(rank, ranks, sync) as trainer:
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

    chosen = None if all_on is None else support.AllOnOne(all_on)
    with opened(rank, ranks, sync, support.TINY_LONG, sharding_object=chosen) as trainer:
        strategy, driver, before = trainer.strategies.sync, Driver(trainer, 0, 5), parameters(trainer)

        def wait_for_a_round(*_):
            # The first may have been written before the forward pass.
            seen = len(strategy.syncs())
            while driver.step and len(strategy.syncs()) < seen + 2:
                pass

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


def train_unevenly(rank, ranks, sync):
    """Ten times as many steps on rank 0 as on the others, without the loader, which keeps ranks in step."""
    with opened(rank, ranks, sync) as trainer:
        strategy = trainer.strategies.sync
        for step in range(100 if rank == 0 else 10 * (rank - 1)):
            take_a_step(trainer, step)
        strategy.flush()
        return len(strategy.syncs())


def take_a_step(trainer, step):
    """Of a random walk: without the loader, in which ranks might meet."""
    from fsbench.axes import TargetCounts

    strategy = trainer.strategies.sync
    strategy.flat.gradients.normal_()
    strategy.after_backward(step, TargetCounts(1, 1))
    strategy.before_step()
    trainer.optimizer.step()
    strategy.after_step()


@pytest.mark.parametrize("sync", [UNTHROTTLED, "shadow-bmuf:duty=1"])
@pytest.mark.parametrize("count", [2, 3])
def test_ranks_may_take_different_numbers_of_steps_or_none(ranks, sync, count):
    assert len(set(ranks.run(train_unevenly, count, sync))) == 1


def test_ranks_that_are_alone_with_the_servers_sync_as_often_as_they_come_to_it(ranks):
    """The second one takes no step."""
    _, second, _ = ranks.run(train_unevenly, 3, "shadow-easgd:duty=1")
    assert second == 0


def stand_still(rank, ranks, sync, until):
    """Rank 0 takes 6 steps. Rank 1 stands still before its third until rank 0 is in its first sync, or at its end.

    What is told of each, in the order in which it happened: when rank 1 went on, and when rank 0 had taken 2, 4 and 6.
    """
    from fsbench.train.channels import meeting_point

    with opened(rank, ranks, sync) as trainer:
        store, strategy, told = meeting_point(), trainer.strategies.sync, {}
        name = f"{sync}, {until}"
        if rank == 0:
            strategy.round = announced(strategy.round, lambda: store.set(f"{name}: rank 0 syncs", "1"))
        for step in range(6):
            if rank == 1 and step == 2:
                store.wait([f"{name}: rank 0 {until}"])
                told["rank 1 goes on"] = store.add(f"{name}: clock", 1)
            take_a_step(trainer, step)
            if rank == 0 and step % 2:
                told[f"rank 0 took {step + 1}"] = store.add(f"{name}: clock", 1)
        if rank == 0:
            store.set(f"{name}: rank 0 ends", "1")
        strategy.flush()
        return told


def announced(call, say):
    def said(*arguments, **named):
        say()
        return call(*arguments, **named)

    return said


def order(told):
    return sorted({**told[0], **told[1]}, key=lambda event: {**told[0], **told[1]}[event])


@pytest.mark.parametrize("sync", ["fr-ma:every=4", "fr-bmuf:every=4", "local-sgd:every=4", "diloco:every=4"])
def test_in_the_foreground_a_rank_that_stands_still_stops_the_others_at_the_next_sync(ranks, sync):
    events = order(ranks.run(stand_still, 2, sync, "syncs"))
    assert events == ["rank 0 took 2", "rank 1 goes on", "rank 0 took 4", "rank 0 took 6"]


@pytest.mark.parametrize("sync", [*SHADOWS, "fr-easgd:every=1"])
def test_in_the_background_and_at_servers_the_others_take_all_their_steps_meanwhile(ranks, sync):
    events = order(ranks.run(stand_still, 2, sync, "ends"))
    assert events == ["rank 0 took 2", "rank 0 took 4", "rank 0 took 6", "rank 1 goes on"]


def stop_the_shadow(rank, ranks, sync):
    """Rank 1 trains with its background held up after its first round until rank 0 has trained to its end: syncs of
    rank 0 when it was held up, and at its own end; steps of rank 1 meanwhile."""
    from fsbench.train.channels import meeting_point

    with opened(rank, ranks, sync) as trainer:
        store, strategy = meeting_point(), trainer.strategies.sync
        meet, held, released = strategy.exchange.meet, threading.Event(), threading.Event()

        def hold(**how):
            if strategy.rounds == 1:
                held.set()
                released.wait()
            return meet(**how)

        if rank == 1:
            strategy.exchange.meet = hold
        take_a_step(trainer, 0)
        if rank == 1:
            held.wait()
            store.set(f"{sync}: held", "1")
        store.wait([f"{sync}: held"])
        enough = 1 if sync.startswith(AVERAGING) else 20
        for step in range(1, 50):
            take_a_step(trainer, step)
        while len(strategy.syncs()) < enough and rank == 0:
            take_a_step(trainer, step)
        syncs = len(strategy.syncs())
        store.set(f"{sync}: rank {rank} ends", "1")
        store.wait([f"{sync}: rank 0 ends", f"{sync}: rank 1 ends"])
        released.set()
        strategy.flush()
        return strategy.steps, syncs


@pytest.mark.parametrize("sync", SHADOWS)
def test_a_background_that_is_held_up_stops_no_training_and_the_syncs_of_those_that_need_it(ranks, sync):
    sync = f"{sync},duty=1" if ":" in sync else f"{sync}:duty=1"
    (steps, syncs), (others, held) = ranks.run(stop_the_shadow, 2, sync)
    assert min(steps, others) >= 50
    assert held == 1
    assert syncs == 1 if sync.startswith(AVERAGING) else syncs >= 20


def fail_in_the_background(rank, ranks, sync):
    from fsbench.train.driver import Driver

    with opened(rank, ranks, sync) as trainer:

        def meet(**how):
            raise RuntimeError("the background broke")

        trainer.strategies.sync.exchange.meet = meet
        driver = Driver(trainer, 0, 10_000)
        with pytest.raises(RuntimeError) as error:
            driver.run()
        return str(error.value), driver.step


@pytest.mark.parametrize("sync", SHADOWS)
def test_what_fails_in_the_background_is_raised_by_training_soon(ranks, sync):
    for message, step in ranks.run(fail_in_the_background, 2, sync):
        assert message == "the background broke"
        assert step < 10_000


def fail_in_a_step(rank, ranks, sync):
    from fsbench.train.driver import Driver

    def explode(step):
        if step == 7:
            raise ArithmeticError

    with opened(rank, ranks, sync) as trainer, suppress(ArithmeticError):
        Driver(trainer, 0, 20).run(before_step=explode)
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("lane-")]


@pytest.mark.parametrize("sync", SHADOWS)
def test_after_a_failed_step_closing_ends_the_background(ranks, sync):
    assert ranks.run(fail_in_a_step, 2, sync) == [[], []]


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


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("alpha=0", "alpha is 0.0, expected more than 0 and at most 1"),
        ("duty=1.5", "duty is 1.5, expected more than 0 and at most 1"),
        ("min_interval=-1", "min_interval is -1.0, expected 0 seconds or more"),
        ("write_back=push", "write_back"),
    ],
)
@pytest.mark.parametrize("shadow", ["shadow-ma", "shadow-bmuf", "shadow-easgd"])
def test_wrong_options_of_the_background_are_refused(shadow, option, message):
    with pytest.raises(UserError, match=message):
        created(f"{shadow}:{option}")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fr-ma:every=0", "every is 0, expected at least 1"),
        ("fr-bmuf:alpha=2", "alpha is 2.0, expected more than 0 and at most 1"),
        ("fr-bmuf:momentum=1", "momentum is 1.0, expected at least 0 and less than 1"),
        ("shadow-bmuf:step_size=0", "step_size is 0.0, expected more than 0"),
        ("diloco:momentum=-0.1", "momentum is -0.1, expected at least 0 and less than 1"),
        ("fr-easgd:servers=0", "servers is 0, expected 1 to 64"),
        ("shadow-easgd:servers=65", "servers is 65, expected 1 to 64"),
        ("shadow-easgd:order=pull-push", "order"),
    ],
)
def test_wrong_options_of_rules_and_rates_are_refused(spec, message):
    with pytest.raises(UserError, match=message):
        created(spec)


def created(spec):
    from fsbench.options import Spec
    from fsbench.plugins import create

    return create("sync", Spec.parse(spec))


def test_the_pause_keeps_rounds_within_the_duty():
    from fsbench_strategies.sync.exchange import Cost

    def pause(options):
        strategy = created(f"shadow-ma:{options}")
        strategy.exchange = SimpleNamespace(cost=Cost(cpu_s=0.004, wall_s=0.010))
        return strategy._pause()

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

"""Ranks that are not in step, or fail: whom a dense sync holds up, in the background and in the foreground."""

import threading
from contextlib import suppress

import pytest

torch = pytest.importorskip("torch")

from tests.sync_cells import AVERAGING, SHADOWS, opened, take_a_step, unthrottled  # noqa: E402

pytestmark = pytest.mark.distributed


def train_unevenly(rank, ranks, sync):
    """Ten times as many steps on rank 0 as on the others, without the loader, which keeps ranks in step."""
    with opened(rank, ranks, sync) as trainer:
        strategy = trainer.strategies.sync
        for step in range(100 if rank == 0 else 10 * (rank - 1)):
            take_a_step(trainer, step)
        strategy.flush()
        return len(strategy.syncs())


@pytest.mark.parametrize("sync", ["shadow-ma:duty=1", "shadow-bmuf:duty=1"])
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
    (steps, syncs), (others, held) = ranks.run(stop_the_shadow, 2, unthrottled(sync))
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

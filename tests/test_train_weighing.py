"""What a run measures reaches the next assignments: on real ranks, with compute times that the tests make up."""

from __future__ import annotations

import numpy as np
import pytest

from fsbench.axes import BatchMeta, Sharding
from tests import support

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]

A_SAMPLE, A_TOKEN = 2e-3, 3e-5
"""Made-up seconds of compute."""
STEPS = 40


class Recording(Sharding):
    """Heaviest first to the rank that will be done first, counts free; keeps all it was told."""

    def __init__(self, lookahead: int, **options) -> None:
        super().__init__(Sharding.Options(**options))
        self.lookahead = lookahead
        self.batches: list[BatchMeta] = []
        self.observed: list[list[float]] = []

    def assign(self, batch: BatchMeta) -> np.ndarray:
        self.batches.append(batch)
        assignment, loads = np.zeros(len(batch.costs), np.int64), np.zeros(batch.ranks)
        for sample in np.argsort(-batch.costs, kind="stable"):
            rank = assignment[sample] = np.argmin((loads + batch.costs[sample]) / batch.speeds)
            loads[rank] += batch.costs[sample]
        return assignment

    def observe(self, seconds: np.ndarray) -> None:
        self.observed.append(seconds.tolist())


def train(rank, ranks, lookahead, slowness, options, workload=support.TINY_LONG):
    """What the sharding was told, and by step: this rank's made-up seconds and the statistics of all ranks."""
    from fsbench.train.driver import Driver
    from fsbench.train.trainer import close_trainer

    sharding = Recording(lookahead, **options)
    trainer = support.open_cell(rank, ranks, workload, sharding_object=sharding)
    driver, seconds = Driver(trainer, 0, STEPS), []
    while driver.step < STEPS:
        driver.train_step()
        stats = driver.stats[-1]
        seconds.append(slowness[rank] * (A_SAMPLE * stats.samples[rank] + A_TOKEN * stats.tokens[rank] + 1e-3))
        trainer.context.timeline.last_compute_ns = round(1e9 * seconds[-1])
    evidence = driver.weigher.evidence()
    close_trainer(trainer)
    return {
        "batches": sharding.batches,
        "observed": sharding.observed,
        "seconds": seconds,
        "stats": driver.stats,
        "evidence": evidence,
    }


@pytest.mark.parametrize("lookahead", [0, 1, 2])
def test_every_rank_is_told_the_compute_of_every_step_once_and_in_order(ranks, lookahead):
    found = ranks.run(train, 2, lookahead, [1.0, 1.0], {})
    took = np.array([rank["seconds"] for rank in found]).T
    for rank in found:
        told = np.array(rank["observed"])
        assert len(told) == STEPS - 1 - lookahead  # what comes after the last load, nobody needs
        assert told == pytest.approx(took[: len(told)], abs=1e-9)


def test_a_rank_that_takes_twice_as_long_gets_half_as_much(ranks):
    found = ranks.run(train, 2, 1, [1.0, 2.0], {"speeds": "measured", "costs": "online"})
    for rank in found:
        assert [batch.speeds.tolist() for batch in rank["batches"]] == [
            batch.speeds.tolist() for batch in found[0]["batches"]
        ]
        assert rank["batches"][1].speeds.tolist() == [1, 1]
        assert rank["evidence"]["speeds"] == pytest.approx([1.0, 0.5], rel=0.1)
    took = np.array([rank["seconds"] for rank in found])[:, 20:].sum(axis=1)
    assert took[0] == pytest.approx(took[1], rel=0.1)


def test_equal_speeds_are_left_equal_unless_asked_for(ranks):
    for rank in ranks.run(train, 2, 1, [1.0, 2.0], {}):
        assert {tuple(batch.speeds) for batch in rank["batches"]} == {(1.0, 1.0)}
        assert rank["evidence"] == {"costs": {"source": "flops"}, "speeds": "equal", "repeatable": False}


def test_online_costs_become_the_seconds_that_the_run_shows_the_same_on_every_rank(ranks):
    found = ranks.run(train, 3, 1, [1.0, 1.0, 1.0], {"costs": "online"})
    costs = [[batch.costs.tolist() for batch in rank["batches"]] for rank in found]
    assert costs[0] == costs[1] == costs[2]
    last = found[0]["batches"][-1]
    assert last.costs == pytest.approx(A_SAMPLE + A_TOKEN * last.tokens, rel=1e-3)
    assert found[0]["stats"][-1].fixed == pytest.approx(1e-3, rel=1e-2)
    assert found[0]["stats"][0].fixed == 0
    assert found[0]["evidence"]["costs"]["this_run"]["median"] < 0.01


def test_operations_are_counted_whatever_the_costs_are(ranks):
    """Throughput in FLOP/s must not follow the balancer's beliefs."""
    by_flops, online = (ranks.run(train, 2, 1, [1.0, 1.0], {"costs": costs}) for costs in ("flops", "online"))
    totals = [np.sum([own_flops(rank) for rank in found], axis=0) for found in (by_flops, online)]
    assert totals[0] == pytest.approx(totals[1])
    assert totals[0] == pytest.approx([batch.costs.sum() for batch in by_flops[0]["batches"]])


def own_flops(rank):
    return [step.own_flops for step in rank["stats"]]


def load_apart(rank, ranks, options):
    from fsbench.train.trainer import close_trainer

    workload = "dense:hidden=4,inputs=4,layers=1"
    trainer = support.open_cell(rank, ranks, workload, sharding=f"naive:{options}", sync="none")
    apart = trainer.apart
    close_trainer(trainer)
    return apart


@pytest.mark.parametrize(
    ("options", "apart"), [("costs=flops", True), ("costs=online", False), ("speeds=measured", False)]
)
def test_ranks_that_need_each_others_times_do_not_load_apart(ranks, options, apart):
    assert ranks.run(load_apart, 2, options) == [apart, apart]


def floor_after_training(rank, ranks):
    """Costs and speeds in the noise floor of a run, and how many steps the run's own weigher was told."""
    from fsbench.train.driver import Driver
    from fsbench.train.floor import SameForAll, Stay
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks, sharding_object=Recording(1, costs="online", speeds="measured"))
    driver = Driver(trainer, 0, 6)
    driver.run()
    before = driver.weigher.evidence()
    same = SameForAll(trainer.workload, 6)
    floor = Driver(trainer, 6, 12, workload=same, sharding=Stay())
    floor.run()
    close_trainer(trainer)
    return before == driver.weigher.evidence(), floor.weigher.evidence()


def test_the_noise_floor_neither_follows_nor_feeds_what_the_run_learned(ranks):
    for untouched, floor in ranks.run(floor_after_training, 2):
        assert untouched
        assert floor == {"costs": {"source": "flops"}, "speeds": "equal", "repeatable": True}

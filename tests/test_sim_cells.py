"""Cells on a simulated machine: their batches are counted and assigned for real, and what has no plan is refused."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench.axes import DenseSync
from fsbench.errors import Unsupported
from fsbench.samples import Samples
from fsbench.sim import batches as batches_module
from fsbench.sim.batches import Batches
from fsbench.sim.cell import Described, PlannedStrategies, plan_of, write_cell
from fsbench.sim.engine import execute
from fsbench.sim.profile import load_profile
from fsbench.sim.report import simulated_metrics
from fsbench.sim.rows import RowCounter
from fsbench_strategies.collectives.backend import Backend
from fsbench_strategies.embedding.hot_first import HotFirst
from fsbench_strategies.embedding.parameter_server import ParameterServer
from fsbench_strategies.embedding.plain import Plain
from fsbench_strategies.embedding.prioritized import Prioritized
from fsbench_strategies.sharding.cost_aware import CostAware
from fsbench_strategies.sharding.naive import Naive
from fsbench_strategies.sharding.variable_batch import VariableBatch
from fsbench_strategies.sync.allreduce import AllReduce
from fsbench_strategies.sync.local_steps import LocalSteps
from fsbench_strategies.sync.none import NoSync
from fsbench_strategies.sync.shadow_ma import ShadowMA
from fsbench_workloads.long_cpu import LongCpu

ROWS = 30


def count(batches: list[list[list[int]]], ranks: int) -> list:
    """Of batches by rank, what the counter says of each."""
    counter = RowCounter(ROWS, ranks)
    given_ids = [[np.array(ids, np.int64) for ids in batch] for batch in batches]
    return [counter.add(ids) for ids in (*given_ids, None)][1:]


_ids = st.lists(st.integers(0, ROWS - 1), max_size=12)


@given(st.lists(st.lists(_ids, min_size=3, max_size=3), min_size=1, max_size=4))
def test_rows_are_counted_by_who_asks_and_by_what_batches_in_a_row_have_in_common(batches):
    counted = count(batches, ranks=3)
    sets = [[set(ids) for ids in batch] for batch in batches]
    everyone = [set().union(*batch) for batch in sets]
    for step, rows in enumerate(counted):
        before = everyone[step - 1] if step else everyone[0]
        after = everyone[step + 1] if step + 1 < len(batches) else set()
        assert rows.ids.tolist() == [len(ids) for ids in batches[step]]
        assert rows.wanted.sum(axis=1).tolist() == [len(ids) for ids in sets[step]]
        assert rows.shared.sum(axis=1).tolist() == [len(ids & before) for ids in sets[step]]
        assert rows.needed.sum(axis=1).tolist() == [len(ids & after) for ids in sets[step]]
        assert (rows.touched, rows.again) == (len(everyone[step]), len(everyone[step] & after))


def workload() -> LongCpu:
    made = LongCpu(LongCpu.Options(batch=8, items=4000, categories=5, max_len=200, negatives=8))
    made.prepare(None, seed=1)
    return made


def described(of: LongCpu) -> Described:
    """As torch would, without it."""

    def row_ids(samples: Samples) -> Mapping[str, np.ndarray]:
        return {"items": np.concatenate([samples.columns["items"].values, of.negatives(samples.index).ravel()])}

    return Described([64, 4096, 640], 4, row_ids)


def simulate(steps: int = 12, ranks: int = 16, **axes: object) -> dict:
    chosen = {"sharding": Naive(), "embedding": Plain(), "collectives": Backend(), "sync": AllReduce()} | axes
    strategies = PlannedStrategies(**chosen)
    profile, trains = load_profile("h100-ib200"), workload()
    machine = profile.machine(ranks, seed=1)
    batches = Batches(trains, strategies.sharding, ranks, steps, described(trains).row_ids)
    driver = write_cell(strategies, trains, described(trains), batches, profile, machine.topology)
    executed = execute(driver.steps(), machine)
    outcome = simulated_metrics(executed, strategies.lanes, driver.written, driver.synced, strategies.embedding)
    return outcome["metrics"]


def test_balancing_takes_the_stragglers_away():
    naive, balanced = simulate(), simulate(sharding=CostAware())
    assert naive["imbalance_predicted"] - 1 > 5 * (balanced["imbalance_predicted"] - 1)
    assert naive["bubble_straggler"] > balanced["bubble_straggler"]


def test_rows_that_are_sent_early_are_not_waited_for():
    assert simulate()["exposed_embedding_ms"] > simulate(embedding=Prioritized())["exposed_embedding_ms"]


def test_averaging_in_the_background_is_not_waited_for_and_syncs_are_counted():
    shadow = simulate(sync=ShadowMA())
    assert shadow["blocked_share"] == 0
    assert shadow["syncs_per_min"] > 0
    assert simulate()["sync_gap_p50"] == 1


def test_collisions_are_those_of_steps_that_were_counted(monkeypatch):
    every = simulate()["collision_rate"]
    monkeypatch.setattr(batches_module, "MOST_IDS", 1)
    assert simulate()["collision_rate"] == pytest.approx(every, abs=0.02)


def test_the_same_run_again_gives_the_same_figures():
    assert simulate(sharding=CostAware()) == simulate(sharding=CostAware())


def test_parts_of_the_bubble_add_up_to_it():
    metrics = simulate(sync=ShadowMA(), embedding=Prioritized())
    parts = [value for name, value in metrics.items() if name.startswith("bubble_")]
    assert sum(parts) == pytest.approx(metrics["bubble"])


def test_a_strategy_without_a_plan_is_unsupported():
    with pytest.raises(Unsupported, match="Silent has no plan"):
        plan_of("sync", Silent(), lambda: Silent().plan(None))


class Silent(DenseSync):
    """Says nothing of what it does."""

    def attach(self, module) -> None: ...

    def replicas(self) -> dict:
        return {}


def test_a_plan_is_not_taken_for_that_of_a_class_that_does_something_else():
    """`HotFirst` is a `Prioritized`, and sends other things."""
    with pytest.raises(Unsupported, match="HotFirst has no plan"):
        simulate(embedding=HotFirst())


def test_a_plan_is_that_of_a_class_that_adds_nothing():
    stage = type("Stage", (), {"script": None})
    assert plan_of("sync", NoSync(), lambda: LocalSteps.plan(NoSync(), stage))


def test_server_processes_are_unsupported():
    with pytest.raises(Unsupported, match="ParameterServer needs server processes"):
        simulate(embedding=ParameterServer(), sync=NoSync())


def test_what_follows_measured_times_is_unsupported():
    for follows in (VariableBatch(), CostAware(CostAware.Options(speeds="measured"))):
        with pytest.raises(Unsupported, match="follows measured times"):
            simulate(sharding=follows)


def test_batches_are_the_workloads_own_and_lose_no_sample():
    trains = workload()
    whole = list(Batches(trains, CostAware(), 4, 3, described(trains).row_ids))
    assert [batch.step for _, batch in whole] == [0, 1, 2]
    for step, (batch, _) in enumerate(whole):
        loaded = [trains.load(step, rank, 4) for rank in range(4)]
        assert batch.samples.sum() == batch.loaded.sum() == sum(map(len, loaded))
        assert batch.tokens.sum() == sum(samples.tokens.sum() for samples in loaded)
        assert batch.flops.sum() == pytest.approx(sum(trains.costs(samples).sum() for samples in loaded))


@pytest.mark.parametrize("sharding", [Naive(), CostAware()])
def test_rows_that_are_estimated_are_those_that_are_counted_within_their_error(monkeypatch, sharding):
    trains = workload()
    steps, ranks = 30, 4

    def rows(most: int) -> tuple[Batches, list]:
        monkeypatch.setattr(batches_module, "MOST_IDS", most)
        batches = Batches(trains, sharding, ranks, steps, described(trains).row_ids)
        return batches, [batch.tables["items"] for _, batch in batches]

    estimating, estimated = rows(most=1)
    counting, counted = rows(most=10**9)
    assert estimating.evidence()["items"]["counted_steps"] == batches_module.FEWEST_STEPS
    assert counting.evidence() == {"items": {"counted_steps": steps}}
    assert all(np.array_equal(one.ids, other.ids) for one, other in zip(estimated, counted, strict=True))
    for name in ("distinct", "shared", "needed"):
        mean, error = estimating.evidence()["items"][name]
        part, whole = {"distinct": ("wanted", "ids")}.get(name, (name, "wanted"))
        inner = counted[1:-1]
        exact = sum(getattr(each, part).sum() for each in inner) / sum(getattr(each, whole).sum() for each in inner)
        assert abs(mean - exact) < 4 * error + 0.01
        assert 0 < error < 0.05

"""Where costs and speeds come from: operations, a profile, or the run itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench.axes import Sharding
from fsbench.costs.sources import ROWS_A_COEFFICIENT, SETTLING
from fsbench.costs.speeds import SLOWEST, RankSpeeds
from fsbench.costs.weigher import Weigher, needs_times
from fsbench.errors import DataError, Unsupported
from fsbench.samples import Jagged, Samples
from fsbench_strategies.sharding.naive import Naive
from tests.test_costs_profile import MACHINE, profile, workload

TRUE = {"sample": 1e-3, "token": 2e-5, "token^2": 3e-9, "batch": 4e-3}


def weigher(ranks=2, here=MACHINE, of=None, **options) -> Weigher:
    return Weigher(Naive(Sharding.Options(**options)), of or prepared(), ranks, here)


def prepared():
    made = workload()
    made.prepare(None, 1)
    return made


def seconds_of(features) -> np.ndarray:
    return features @ np.array(list(TRUE.values()))


def test_a_sharding_whose_options_do_not_say_gets_operations_and_equal_speeds():
    class Plain(Naive):
        @dataclass(frozen=True)
        class Options:
            mine: int = 3

    made = prepared()
    weighed = Weigher(Plain(), made, 3, MACHINE)
    samples = made.load(0, 0, 1)
    assert weighed.costs.of(samples).tolist() == made.costs(samples).tolist()
    assert weighed.speeds.tolist() == [1, 1, 1]
    assert weighed.costs.fixed == 0
    assert weighed.evidence() == {"costs": {"source": "flops"}, "speeds": "equal", "repeatable": True}
    assert not needs_times(Plain())


def test_a_sharding_that_watches_times_is_not_repeatable_unless_it_says_otherwise():
    class Watching(Naive):
        def observe(self, seconds):
            pass

    class Deaf(Watching):
        repeatable = True

    made = prepared()
    assert [Weigher(cls(), made, 1, MACHINE).evidence()["repeatable"] for cls in (Watching, Deaf)] == [False, True]


def test_a_profile_gives_seconds_and_its_error_stands_in_the_evidence(tmp_path):
    profile().write(tmp_path / "p.json")
    made = prepared()
    weighed = weigher(of=made, costs="profile", profile=str(tmp_path / "p.json"), here={**MACHINE, "threads": 4})
    samples = made.load(0, 0, 1)
    tokens = samples.tokens
    assert weighed.costs.of(samples) == pytest.approx(1e-3 + 2e-5 * tokens + 3e-9 * tokens**2)
    assert weighed.costs.fixed == 4e-3
    features = np.stack([weighed.costs.features(made.load(step, 0, 1)) for step in (1, 2)])
    weighed.learn(np.ones(2), features, 1.5 * seconds_of(features))
    found = weighed.evidence()["costs"]
    assert found["held_out_error"] == {"median": 0.02, "p95": 0.07}
    assert found["machine_differs"] == ["threads: 1, here 4"]
    assert found["coefficients_s"] == profile().coefficients_s
    assert found["this_run"]["scale"] == pytest.approx(1.5)
    assert found["this_run"]["median"] == pytest.approx(0, abs=1e-9)
    assert weighed.evidence()["repeatable"]


def test_a_profile_with_other_coefficients_than_the_workload_has_features_is_refused(tmp_path):
    profile(coefficients_s={**TRUE, "candidate": 1.0}).write(tmp_path / "p.json")
    with pytest.raises(DataError) as error:
        weigher(costs="profile", profile=str(tmp_path / "p.json"))
    assert "has coefficients for batch, candidate, sample, token, token^2; the workload is described by" in str(
        error.value
    )


def test_online_costs_are_operations_until_enough_was_seen_and_then_what_the_run_shows():
    made = prepared()
    weighed = weigher(of=made, costs="online")
    samples = made.load(0, 0, 1)
    steps = SETTLING + -(-ROWS_A_COEFFICIENT * len(TRUE) // 2)
    for step in range(steps):
        assert weighed.costs.of(samples).tolist() == made.costs(samples).tolist()
        assert weighed.costs.fixed == 0
        features = np.stack([weighed.costs.features(made.load(2 * step + rank, 0, 1)) for rank in (0, 1)])
        # What the first steps took is no guide to the others.
        weighed.learn(np.ones(2), features, seconds_of(features) if step >= SETTLING else np.array([9.0, 1.0]))
    tokens = samples.tokens
    batch_share = TRUE["batch"] / len(samples)  # all rank-batches have as many samples: their time is the samples'
    assert weighed.costs.of(samples) == pytest.approx(1e-3 + batch_share + 2e-5 * tokens + 3e-9 * tokens**2, rel=1e-6)
    assert not weighed.evidence()["repeatable"]


def test_a_fit_in_which_samples_cost_nothing_is_not_used():
    made = prepared()
    weighed = weigher(of=made, costs="online")
    samples = made.load(0, 0, 1)
    features = np.stack([weighed.costs.features(samples), weighed.costs.features(samples.take(np.arange(1)))])
    for _ in range(30):
        weighed.learn(np.ones(2), features, np.ones(2))
    assert weighed.costs.of(samples).tolist() == made.costs(samples).tolist()


def test_further_columns_are_features_and_a_workload_may_add_its_own():
    made = prepared()
    two, four = np.array([2, 3]), np.array([4, 0])
    samples = Samples(two, two, {"items": Jagged(np.zeros(5, int), two), "candidate": Jagged(np.zeros(4, int), four)})
    described = weigher(of=made, costs="online").costs
    assert described.features(samples).tolist() == [2, 5, 4 + 9, 4, 1]
    made.cost_features = lambda samples: {"distinct id": np.array([1.0, 1.0])}
    assert described.features(samples).tolist() == [2, 5, 4 + 9, 2, 1]


@pytest.mark.parametrize("options", [{"costs": "online"}, {"speeds": "measured"}])
def test_what_needs_times_is_refused_where_compute_is_not_timed(options):
    assert needs_times(Naive(Sharding.Options(**options)))
    with pytest.raises(Unsupported, match="compute on a GPU is not timed"):
        weigher(here={**MACHINE, "device": "cuda"}, **options)


def test_speeds_start_equal_and_become_what_was_measured():
    weighed = weigher(ranks=3, speeds="measured")
    assert weighed.speeds.tolist() == [1, 1, 1]
    features = np.zeros((3, 0))
    for _ in range(3):
        weighed.learn(np.array([6.0, 6.0, 3.0]), features, np.array([0.2, 0.1, 0.1]))
    assert weighed.speeds == pytest.approx([0.5, 1.0, 0.5])
    assert not weighed.evidence()["repeatable"]
    assert weighed.evidence()["speeds"] == weighed.speeds.tolist()


def test_online_costs_are_fitted_at_a_common_speed():
    made = prepared()
    weighed = weigher(of=made, costs="online", speeds="measured")
    slowness = np.array([1.0, 3.0])
    for step in range(60):
        features = np.stack([weighed.costs.features(made.load(2 * step + rank, 0, 1)) for rank in (0, 1)])
        weighed.learn(seconds_of(features), features, slowness * seconds_of(features))
    samples = made.load(0, 0, 1)
    assert weighed.speeds == pytest.approx(1 / slowness)
    assert weighed.costs.of(samples).sum() == pytest.approx(seconds_of(weighed.costs.features(samples)), rel=1e-3)


shares = st.lists(st.floats(0.2, 10), min_size=4, max_size=4).map(np.array)


@given(st.lists(st.tuples(shares, st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)), min_size=1, max_size=8), shares)
def test_speeds_do_not_depend_on_the_units_of_cost_and_time(steps, slowness):
    plain, scaled = RankSpeeds(4), RankSpeeds(4)
    for cost, unit, pace in steps:
        plain.observe(cost, cost * slowness)
        scaled.observe(cost * unit, cost * slowness * pace)
    assert scaled.relative() == pytest.approx(plain.relative(), rel=1e-9)
    assert plain.relative() == pytest.approx(slowness.min() / slowness, rel=1e-9)


def test_a_rank_without_samples_keeps_its_speed_and_one_that_never_had_any_counts_as_fast():
    speeds = RankSpeeds(3)
    speeds.observe(np.array([1.0, 2.0, 0.0]), np.array([1.0, 1.0, 0.1]))
    assert speeds.relative() == pytest.approx([0.5, 1.0, 1.0])
    for _ in range(50):
        speeds.observe(np.array([0.0, 1.0, 1.0]), np.array([0.1, 1.0, 1.0]))
    assert speeds.relative()[0] == pytest.approx(0.5, rel=0.5)


def test_a_change_of_pace_is_followed_within_twenty_steps():
    speeds = RankSpeeds(2)
    for slowness in [1.0] * 40 + [2.0] * 20:
        speeds.observe(np.ones(2), np.array([slowness, 1.0]))
    assert speeds.relative() == pytest.approx([0.5, 1.0], rel=0.05)


def test_no_rank_counts_as_so_slow_that_it_would_never_be_given_anything():
    speeds = RankSpeeds(2)
    speeds.observe(np.array([1e-9, 1.0]), np.ones(2))
    assert speeds.relative().tolist() == [SLOWEST, 1.0]


def test_following_measured_speeds_makes_times_equal_whatever_the_costs_leave_out():
    """Costs know nothing of the 3 s that every batch takes; still the split settles where both ranks take as long."""
    slowness, speeds = np.array([1.0, 2.0]), RankSpeeds(2)
    for _ in range(80):
        shares = speeds.relative() / speeds.relative().sum()
        seconds = slowness * (3 + 20 * shares)
        speeds.observe(20 * shares, seconds)
    assert seconds[0] == pytest.approx(seconds[1], rel=0.01)

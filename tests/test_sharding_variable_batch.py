"""FreeScale's variable batch size: contiguous segments of near equal weight, tuned by measured times."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench.errors import UserError
from fsbench.options import Spec
from fsbench.plugins import create
from fsbench_strategies.sharding.variable_batch import VariableBatch, cut
from tests.balancing import counts, of_lengths, sharding


def weights_by_rank(assignment, batch, alpha=1.0):
    return np.bincount(assignment, batch.tokens.astype(float) ** alpha, minlength=batch.ranks)


def simulated_steps(strategy, batch, seconds_of, steps):
    """What each rank took in every step, when each step's times are observed before the next."""
    times = []
    for _ in range(steps):
        times.append(seconds_of(strategy.assign(batch)))
        strategy.observe(times[-1])
    return np.array(times)


@given(st.lists(st.integers(0, 500), max_size=60), st.integers(1, 6))
def test_every_rank_gets_neighbours_in_length_and_at_least_one_sample_where_there_are_enough(lengths, ranks):
    batch = of_lengths(lengths, ranks)
    assignment = VariableBatch().assign(batch)
    assert (np.diff(assignment[np.argsort(-batch.tokens, kind="stable")]) >= 0).all()
    assert np.count_nonzero(counts(assignment, batch)) == min(len(lengths), ranks)


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_segments_weigh_nearly_the_same_and_differ_in_counts(alpha):
    batch = of_lengths(np.rint(np.random.default_rng(0).gamma(0.78, 610, 8 * 128)).clip(1, 2100), ranks=8)
    assignment = VariableBatch(VariableBatch.Options(alpha=alpha)).assign(batch)
    weights = weights_by_rank(assignment, batch, alpha)
    assert np.ptp(weights) <= 2100**alpha
    assert weights.max() <= weights.mean() * 1.05
    assert counts(assignment, batch).max() > 3 * counts(assignment, batch).min()


def test_high_powers_of_long_histories_overflow_nothing():
    batch = of_lengths(np.arange(1, 101) * 200, ranks=4)
    assignment = VariableBatch(VariableBatch.Options(alpha=20)).assign(batch)
    weights = (batch.tokens / batch.tokens.max()) ** 20
    assert np.bincount(assignment, weights).max() < 0.5 * weights.sum()


def test_at_alpha_0_counts_are_equal():
    batch = of_lengths(np.arange(24) * 9, ranks=4)
    assert counts(VariableBatch(VariableBatch.Options(alpha=0)).assign(batch), batch).tolist() == [6] * 4


def test_a_giant_alone_leaves_a_sample_for_every_other_rank():
    batch = of_lengths([1, 1, 1_000_000, 1], ranks=4)
    assert sorted(VariableBatch().assign(batch).tolist()) == [0, 1, 2, 3]


def test_shares_follow_speeds_until_times_are_measured():
    batch = of_lengths([10] * 30, ranks=3, speeds=[1.0, 2.0, 3.0])
    assert counts(VariableBatch().assign(batch), batch).tolist() == [5, 10, 15]


def test_autotune_finds_what_alpha_does_not_say():
    """Lengths weigh alike, times go with their square: the rank with the long ones is relieved until times are even."""
    lengths = np.rint(np.random.default_rng(1).gamma(0.78, 610, 4 * 64)).clip(1, 2100)
    batch = of_lengths(lengths, ranks=4)
    times = simulated_steps(VariableBatch(), batch, lambda a: np.bincount(a, lengths**2, minlength=4), steps=40)
    assert times[0].max() > 1.5 * times[0].mean()
    assert times[-1].max() < 1.1 * times[-1].mean()


def test_autotune_finds_a_slow_rank():
    batch = of_lengths([100] * 120, ranks=2)
    times = simulated_steps(
        VariableBatch(), batch, lambda a: np.bincount(a, batch.tokens, minlength=2) / [1.0, 0.5], steps=30
    )
    assert times[-1].max() < 1.03 * batch.tokens.sum() / 1.5


def test_without_autotune_times_change_nothing():
    strategy, batch = sharding("variable-batch:eta=0"), of_lengths(range(40), ranks=4)
    before = strategy.assign(batch)
    strategy.observe(np.array([1.0, 2.0, 3.0, 4.0]))
    assert np.array_equal(strategy.assign(batch), before)
    assert strategy.repeatable
    assert not VariableBatch().repeatable


def test_no_measurement_takes_a_share_beyond_its_limits():
    strategy = VariableBatch(VariableBatch.Options(eta=1.0))
    for _ in range(9):
        strategy.observe(np.array([1e-9, 1.0]))
    assert np.ptp(strategy.state_dict()["factors"]) <= 16


def test_a_checkpoint_holds_the_factors():
    strategy, resumed, batch = VariableBatch(), VariableBatch(), of_lengths(range(40), ranks=2)
    strategy.observe(np.array([1.0, 3.0]))
    resumed.load_state_dict(strategy.state_dict())
    assert np.array_equal(resumed.assign(batch), strategy.assign(batch))
    assert not np.array_equal(VariableBatch().assign(batch), strategy.assign(batch))


def test_a_sample_on_a_border_goes_where_more_of_it_lies():
    assert cut(np.array([4.0, 4.0, 1.0]), np.ones(2)).tolist() == [1]
    assert cut(np.array([1.0, 4.0, 4.0]), np.ones(2)).tolist() == [2]


@pytest.mark.parametrize("option", ["alpha=-1", "eta=-0.1", "eta=2", "alpha=inf"])
def test_options_out_of_range_are_refused(option):
    with pytest.raises(UserError, match=option.partition("=")[0]):
        create("sharding", Spec.parse(f"variable-batch:{option}"))

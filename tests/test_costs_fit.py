"""Fitting seconds to features: never negative, never worse than the best, recursive as in one go."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fsbench.costs.fit import Errors, RecursiveFit, fit
from fsbench.costs.nonnegative import nonnegative_least_squares

RELATIVE = 1e-8


def best_by_trying_every_subset(matrix, target):
    """The least squared error over x >= 0: the best of the unconstrained solutions on every subset of the columns."""
    least = target @ target
    for size in range(1, matrix.shape[1] + 1):
        for columns in itertools.combinations(range(matrix.shape[1]), size):
            chosen = matrix[:, columns]
            x = np.linalg.lstsq(chosen, target, rcond=None)[0]
            if (x >= 0).all():
                least = min(least, ((chosen @ x - target) ** 2).sum())
    return least


values = st.floats(-10, 10, allow_subnormal=False).map(lambda value: round(value, 3))


@st.composite
def problems(draw):
    rows, columns = draw(st.integers(1, 8)), draw(st.integers(1, 5))
    matrix = draw(arrays.arrays(np.float64, (rows, columns), elements=values))
    if columns > 1 and draw(st.booleans()):
        matrix[:, -1] = matrix[:, 0]  # two columns that say the same
    return matrix, draw(arrays.arrays(np.float64, rows, elements=values))


@given(problems())
def test_no_subset_of_the_columns_does_better_and_no_coefficient_is_negative(problem):
    matrix, target = problem
    x = nonnegative_least_squares(matrix.T @ matrix, matrix.T @ target)
    assert (x >= 0).all()
    error = ((matrix @ x - target) ** 2).sum()
    assert error <= best_by_trying_every_subset(matrix, target) + 1e-7 * (1 + target @ target)


def test_scales_that_differ_by_twelve_digits_do_not_matter():
    random = np.random.default_rng(0)
    tokens = random.integers(10, 2000, (200, 8)).astype(float)
    features = np.stack([tokens.sum(1), (tokens**2).sum(1), np.ones(200)], axis=1)
    true = np.array([1.2e-5, 3e-9, 2e-3])
    assert fit(features, features @ true) == pytest.approx(true, rel=1e-6)


def test_what_is_not_there_gets_nothing_though_noise_would_make_it_negative():
    tokens = np.arange(1.0, 100.0)
    seconds = 1e-5 * tokens - 1e-9 * tokens**2
    linear, quadratic = fit(np.stack([tokens, tokens**2], axis=1), seconds)
    assert quadratic == 0
    assert linear > 0


def test_errors_count_as_shares_so_that_small_batches_are_fitted_as_well_as_large_ones():
    """Twice the time of a small batch is as bad as twice that of a large one: the fit lies between, in ratio."""
    features, seconds = np.array([[1.0], [1000.0]]), np.array([2.0, 1000.0])
    (coefficient,) = fit(features, seconds)
    by_hand = (1 / 2 + 1 / 1) / (1 / 2**2 + 1 / 1**2)
    assert coefficient == pytest.approx(by_hand)


rows = st.integers(4, 30).flatmap(
    lambda m: st.tuples(
        arrays.arrays(np.float64, (m, 3), elements=st.integers(0, 50).map(float)),
        arrays.arrays(np.float64, m, elements=st.integers(1, 50).map(float)),
        st.lists(st.integers(0, m), max_size=4).map(sorted),
    )
)


@given(rows)
def test_rows_added_one_by_one_without_forgetting_give_the_fit_of_all_of_them(drawn):
    features, seconds, cuts = drawn
    stepwise = RecursiveFit(3)
    for part in np.split(np.arange(len(seconds)), cuts):
        stepwise.add(features[part], seconds[part])
    assert stepwise.rows == len(seconds)
    relative = features / seconds[:, None]
    errors = [((relative @ x - 1) ** 2).sum() for x in (stepwise.coefficients(), fit(features, seconds))]
    assert errors[0] == pytest.approx(errors[1], rel=RELATIVE, abs=RELATIVE)


@given(rows, st.floats(0.5, 1.0))
def test_forgetting_weighs_each_step_by_what_is_kept_of_it(drawn, keep):
    features, seconds, _ = drawn
    forgetful = RecursiveFit(3, keep)
    for row, second in zip(features, seconds, strict=True):
        forgetful.add(row[None], second[None])
    weights = keep ** np.arange(len(seconds))[::-1]
    relative = features / seconds[:, None]

    def error(x):
        return (weights * (relative @ x - 1) ** 2).sum()

    best = best_by_trying_every_subset(relative * np.sqrt(weights)[:, None], np.sqrt(weights))
    assert error(forgetful.coefficients()) <= best + RELATIVE * (1 + weights.sum())


def test_a_drift_is_followed_and_without_forgetting_it_is_not():
    random = np.random.default_rng(1)
    following, remembering = RecursiveFit(2, keep=0.9), RecursiveFit(2)
    before, after = np.array([1e-3, 1e-6]), np.array([3e-3, 1e-6])
    for true, steps in ((before, 200), (after, 60)):
        for _ in range(steps):
            features = random.uniform([1e2, 1e4], [1e3, 1e6], (4, 2))
            seconds = features @ true * random.normal(1, 0.02, 4)
            following.add(features, seconds)
            remembering.add(features, seconds)
    assert following.coefficients() == pytest.approx(after, rel=0.1)
    assert remembering.coefficients()[0] < 0.7 * after[0]


def test_errors_are_told_after_one_common_scale():
    errors = Errors()
    assert errors.summary() == {"rank_batches": 0}
    errors.add(np.array([1.0, 1.0]), np.array([2.0, 2.0]))
    errors.add(np.array([1.0]), np.array([4.0]))
    assert errors.summary() == {"rank_batches": 3, "scale": 2.0, "median": 0.0, "p95": pytest.approx(0.45)}

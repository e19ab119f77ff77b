"""Gamma lengths by inversion."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fsbench_workloads.lengths import GammaLengths, gamma_cdf


def test_with_shape_one_the_distribution_is_exponential():
    x = np.linspace(0, 40, 200)
    np.testing.assert_allclose(gamma_cdf(x, 1.0), 1 - np.exp(-x), rtol=1e-12, atol=1e-15)


def test_with_shape_one_half_it_is_the_error_function():
    x = np.linspace(0, 40, 200)
    expected = [math.erf(math.sqrt(value)) for value in x]
    np.testing.assert_allclose(gamma_cdf(x, 0.5), expected, rtol=1e-12, atol=1e-15)


def test_far_out_the_distribution_is_one():
    np.testing.assert_allclose(gamma_cdf(np.array([1e3, 1e9]), 0.78), 1, rtol=1e-14)


def test_lengths_are_distributed_like_rounded_up_and_clipped_gamma_draws():
    n = 50_000
    ours = GammaLengths(0.78, 610, 2, 2100)((np.arange(n) + 0.5) / n)
    theirs = np.clip(np.ceil(np.random.default_rng(0).gamma(0.78, 610, n)), 2, 2100)
    ours, theirs = (np.cumsum(np.bincount(drawn.astype(int))) / n for drawn in (ours, theirs))
    # Kolmogorov and Smirnov: 1.95 / sqrt(n) is exceeded by chance once in a thousand
    assert np.abs(ours - theirs).max() < 1.95 / np.sqrt(n)


def test_the_stated_mean_is_that_of_the_lengths():
    n = 100_000
    lengths = GammaLengths(0.78, 150, 2, 400)
    assert abs(lengths((np.arange(n) + 0.5) / n).mean() - lengths.mean) < 0.01


@given(st.lists(st.floats(0, 1, exclude_max=True), max_size=20), st.integers(2, 50))
def test_a_length_stays_in_its_bounds_and_grows_with_its_number(uniform, longest):
    lengths = GammaLengths(0.78, 610, 2, longest)(np.sort(np.array(uniform)))
    assert lengths.dtype == np.int64
    assert ((lengths >= 2) & (lengths <= longest)).all()
    assert (np.diff(lengths) >= 0).all()

"""Student's t distribution against its closed forms and its published table."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench.results.student import quantile, two_sided_p


def slow_two_sided_p(t: float, freedom: int) -> float:
    """The finite sums of Abramowitz and Stegun 26.7.3 and 26.7.4, for whole degrees of freedom."""
    theta = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(theta), math.sin(theta)
    term, total = (cosine, cosine) if freedom % 2 else (1.0, 1.0)
    for k in range(3 if freedom % 2 else 2, freedom - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    if freedom == 1:
        return 1 - 2 * theta / math.pi
    return 1 - (2 * (theta + sine * total) / math.pi if freedom % 2 else sine * total)


@given(t=st.floats(0, 60), freedom=st.integers(1, 80))
def test_the_tail_is_that_of_the_closed_form(t: float, freedom: int):
    assert two_sided_p(t, freedom) == pytest.approx(slow_two_sided_p(t, freedom), abs=1e-12)
    assert two_sided_p(-t, freedom) == two_sided_p(t, freedom)


@pytest.mark.parametrize(
    ("tails", "freedom", "t"),
    [
        (0.05, 1, 12.7062),
        (0.05, 5, 2.57058),
        (0.10, 5, 2.01505),
        (0.05, 10, 2.22814),
        (0.01, 10, 3.16927),
        (0.05, 30, 2.04227),
        (0.001, 120, 3.37345),
    ],
)
def test_quantiles_are_those_of_the_published_table(tails: float, freedom: int, t: float):
    assert quantile(tails, freedom) == pytest.approx(t, abs=6e-6 if t < 10 else 6e-5)


@given(tails=st.floats(1e-9, 1), freedom=st.floats(0.6, 5000))
def test_the_quantile_is_the_inverse_of_the_tail_at_any_degrees_of_freedom(tails: float, freedom: float):
    assert two_sided_p(quantile(tails, freedom), freedom) == pytest.approx(tails, rel=1e-8)


@given(t=st.floats(0.01, 20), freedom=st.integers(1, 60), part=st.floats(0, 1))
def test_between_whole_degrees_of_freedom_the_tail_is_between_theirs(t: float, freedom: int, part: float):
    between = two_sided_p(t, freedom + part)
    assert slow_two_sided_p(t, freedom + 1) - 1e-12 <= between <= slow_two_sided_p(t, freedom) + 1e-12


@pytest.mark.parametrize("t", [0.1, 1.0, 1.96, 5.0])
def test_with_many_degrees_of_freedom_it_is_the_normal_distribution(t: float):
    assert two_sided_p(t, 1e6) == pytest.approx(math.erfc(t / math.sqrt(2)), rel=1e-3)


def test_a_far_tail_is_small_and_not_rounded_to_nothing():
    # At 2 degrees of freedom 1 - t / sqrt(2 + t^2) is 1 / t^2 far out.
    assert two_sided_p(1e8, 2) == pytest.approx(1e-16, rel=1e-6)

"""Interval sets against a timeline of single instants."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fsbench.metrics.intervals import covered_before, difference, intersection, interval_set, measure, union

HORIZON = 40
instants = st.integers(-5, HORIZON)
raw_intervals = st.lists(st.tuples(instants, instants), max_size=8)


def make(intervals):
    starts, ends = np.array(intervals, np.int64).reshape(-1, 2).T
    return interval_set(starts, ends)


def instants_of(intervals):
    return {instant for start, end in intervals for instant in range(start, end)}


def assert_is(result, expected):
    assert instants_of(result.tolist()) == expected
    assert result.dtype == np.int64
    assert (np.diff(result.ravel()) > 0).all(), "not sorted, disjoint and apart"


@given(raw_intervals)
def test_a_set_covers_what_its_intervals_cover(intervals):
    assert_is(make(intervals), instants_of(intervals))


@given(raw_intervals, raw_intervals)
def test_operations_equal_those_on_sets_of_instants(a, b):
    assert_is(union(make(a), make(b)), instants_of(a) | instants_of(b))
    assert_is(intersection(make(a), make(b)), instants_of(a) & instants_of(b))
    assert_is(difference(make(a), make(b)), instants_of(a) - instants_of(b))


@given(raw_intervals)
def test_measure_counts_instants(intervals):
    assert measure(make(intervals)) == len(instants_of(intervals))


@given(raw_intervals, st.lists(st.integers(-10, HORIZON + 10), max_size=10))
def test_covered_before_counts_earlier_instants(intervals, times):
    expected = [sum(instant < time for instant in instants_of(intervals)) for time in times]
    assert covered_before(make(intervals), np.array(times, np.int64)).tolist() == expected


def test_nanoseconds_of_a_clock_that_ran_for_years_stay_exact():
    day = 86_400 * 10**9
    a = make([(3000 * day, 3000 * day + 1), (3001 * day, 3001 * day + 3)])
    assert covered_before(a, np.array([3001 * day + 2])).tolist() == [3]

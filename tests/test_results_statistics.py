"""Ratios, intervals and verdicts: against their formulas, and by what they must not do."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench.results.statistics import (
    FASTER,
    MARGIN,
    SAME,
    SLOWER,
    UNCLEAR,
    Estimate,
    Spread,
    holm,
    judge,
    paired,
    unpaired,
)
from fsbench.results.student import quantile

SIX = [0.031, 0.018, 0.043, 0.022, 0.035, 0.027]
logs = st.floats(-3, 3).map(lambda value: round(value, 6))


def around(log_ratio: float, noise: float = 0.002) -> Estimate:
    """Six pairs that scatter evenly about a log ratio."""
    return paired([log_ratio + noise * step for step in (-2, -1, 0, 0, 1, 2)])


def verdicts(*estimates: Estimate) -> list[str | None]:
    return [judged.verdict for judged in judge(estimates)]


def test_pairs_give_the_geometric_mean_and_students_interval():
    estimate = paired(SIX)
    half = 2.570582 * statistics.stdev(SIX) / math.sqrt(6)
    mean = statistics.mean(SIX)
    assert estimate.ratio == pytest.approx(math.exp(mean))
    assert estimate.spread.interval(0.95) == pytest.approx((math.exp(mean - half), math.exp(mean + half)), rel=1e-7)
    assert estimate.spread.p == pytest.approx(0.000510, abs=1e-6)


@given(top=st.lists(logs, min_size=2, max_size=9), below=st.lists(logs, min_size=2, max_size=9))
def test_sets_give_welchs_interval(top: list[float], below: list[float]):
    estimate = unpaired(top, below)
    assert estimate.runs == (len(top), len(below))
    parts = [statistics.variance(sample) / len(sample) for sample in (top, below)]
    if sum(parts) < 1e-12:
        return
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (len(top) - 1) + parts[1] ** 2 / (len(below) - 1))
    half = quantile(0.05, freedom) * math.sqrt(sum(parts))
    difference = statistics.mean(top) - statistics.mean(below)
    assert [math.log(end) for end in estimate.spread.interval(0.95)] == pytest.approx(
        [difference - half, difference + half], rel=1e-6, abs=1e-9
    )


@given(pairs=st.lists(logs, min_size=2, max_size=9))
def test_the_other_way_round_every_ratio_is_the_inverse_and_p_the_same(pairs: list[float]):
    forth, back = paired(pairs), paired([-pair for pair in pairs])
    assert forth.ratio * back.ratio == pytest.approx(1)
    if forth.spread:
        assert forth.spread.p == pytest.approx(back.spread.p)
        (low, high), (low_back, high_back) = forth.spread.interval(0.9), back.spread.interval(0.9)
        assert (low * high_back, high * low_back) == pytest.approx((1, 1))


def test_one_run_has_a_ratio_and_no_interval():
    estimate = paired([math.log(1.5)])
    (judged,) = judge([estimate])
    assert (estimate.ratio, estimate.spread, estimate.no_interval) == (pytest.approx(1.5), None, "no interval")
    assert (judged.verdict, judged.reason, judged.p, judged.runs_needed) == (None, "needs 6 runs", None, None)


def test_two_to_five_runs_have_an_interval_and_a_number_of_runs_but_no_verdict_however_sure():
    for number in range(2, 6):
        (judged,) = judge([paired([0.5 + 0.001 * run for run in range(number)])])
        assert (judged.verdict, judged.reason) == (None, "needs 6 runs")
        assert judged.estimate.spread.interval(0.95)[0] > 1
        assert judged.runs_needed >= 6


def test_nothing_to_compare_is_no_ratio_rather_than_one():
    for estimate in (paired([]), unpaired([1.0], []), unpaired([], [1.0])):
        (judged,) = judge([estimate])
        assert (estimate.ratio, estimate.spread) == (None, None)
        assert (judged.verdict, judged.reason) == (None, "no runs to compare")


def test_of_two_sets_both_need_six_runs():
    assert judge([unpaired([*SIX], SIX[:5])])[0].reason == "needs 6 runs"
    assert judge([unpaired([*SIX], [*SIX, 0.03])])[0].verdict is not None


def test_runs_without_any_spread_have_a_ratio_but_neither_interval_nor_verdict():
    # As far apart as the rounding of logs leaves them.
    same = [math.log(1.1 * speed) - math.log(speed) for speed in (3.0, 7.0, 11.0, 13.0, 17.0, 19.0)]
    for estimate in (paired(same), unpaired([0.1] * 6, [0.0] * 6)):
        (judged,) = judge([estimate])
        assert estimate.ratio == pytest.approx(1.1, rel=1e-2)
        assert (estimate.spread, estimate.no_interval) == (None, "no spread")
        assert (judged.verdict, judged.reason, judged.runs_needed) == (None, "no spread", None)


def test_one_set_without_spread_is_welchs_case_of_a_known_mean():
    assert unpaired(SIX, [0.0] * 6).spread.interval(0.95) == pytest.approx(paired(SIX).spread.interval(0.95))


def test_a_ratio_above_one_is_faster_and_below_it_slower():
    assert verdicts(around(0.05)) == [FASTER]
    assert verdicts(around(-0.05)) == [SLOWER]


def test_the_same_is_a_claim_and_not_the_lack_of_one():
    assert verdicts(around(0.001)) == [SAME]
    assert verdicts(around(0.001, noise=0.02)) == [UNCLEAR]


def test_the_interval_must_lie_inside_the_margin_on_both_sides_and_the_margin_is_the_same_for_either_on_top():
    spread = around(0.0).spread
    half = math.log(spread.interval(0.9)[1])
    for sign in (1, -1):
        inside, outside = (around(sign * (math.log1p(MARGIN) - half * part)) for part in (1.01, 0.99))
        # Judged among many, so that none is FASTER or SLOWER.
        unclear = [around(0, noise=0.03)] * 10_000
        assert verdicts(inside, outside, *unclear)[:2] == [SAME, UNCLEAR]


def test_a_difference_that_is_certain_is_faster_even_if_it_is_small():
    assert verdicts(around(0.005, noise=0.0005)) == [FASTER]


def test_holm_adjusts_as_in_the_textbook():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


@given(ps=st.lists(st.floats(0, 1), max_size=12))
def test_holm_rejects_one_after_the_other_until_one_is_not_small_enough(ps: list[float]):
    adjusted = holm(ps)
    for alpha in (0.01, 0.05, 0.5):
        rejected = set()
        for rank, place in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
            if (len(ps) - rank) * ps[place] >= alpha:
                break
            rejected.add(place)
        assert {place for place, p in enumerate(adjusted) if p < alpha} == rejected


def test_each_verdict_is_one_of_a_family():
    alone = around(0.0033)
    (p,) = [judged.p for judged in judge([alone])]
    assert 0.025 < p < 0.05
    assert verdicts(alone) == [FASTER]
    assert verdicts(alone, around(0, 0.03)) == [SAME, UNCLEAR]


def test_ratios_that_cannot_have_a_verdict_do_not_make_the_others_less_certain():
    alone, *_ = judge([around(0.004)])
    among, *_ = judge([around(0.004), paired([]), paired([0.1, 0.2]), paired([0.1] * 6)])
    assert (among.p, among.verdict) == (alone.p, alone.verdict)


@given(spread=st.floats(0.001, 0.2), contrasts=st.integers(1, 20))
def test_the_runs_needed_are_the_fewest_that_the_formula_allows(spread: float, contrasts: int):
    alpha = 0.05 / contrasts

    def enough(n: int) -> bool:
        return n >= (quantile(alpha, n - 1) + quantile(0.4, n - 1)) ** 2 * spread**2 / math.log(1.02) ** 2

    needed = Spread(0.3, (6,), (spread**2,)).runs_needed(alpha)
    assert enough(needed)
    assert needed == 6 or not enough(needed - 1)


def test_the_runs_needed_grow_with_the_spread_and_the_family_and_not_with_the_ratio():
    needed = [judge([around(0.01, noise)])[0].runs_needed for noise in (0.001, 0.02, 0.04, 0.4, 4.0)]
    assert needed[0] == 6
    assert needed == sorted(set(needed))
    assert judge([around(0.01, 0.02)] * 4)[0].runs_needed > needed[1]
    assert judge([around(1.0, 0.02)])[0].runs_needed == needed[1]


def test_two_sets_of_the_same_error_as_pairs_have_more_freedom_and_need_fewer_runs():
    wide = [3 * value for value in SIX]
    single = [value / math.sqrt(2) for value in wide]
    pairs, sets = paired(wide), unpaired(single, single)
    assert sets.spread.error == pytest.approx(pairs.spread.error)
    assert (pairs.spread.freedom, sets.spread.freedom) == pytest.approx((5, 10))
    assert 6 < judge([sets])[0].runs_needed < judge([pairs])[0].runs_needed


@given(pairs=st.lists(st.floats(-1500, 1500), min_size=1, max_size=8))
def test_no_figures_however_absurd_give_one_that_is_not_finite(pairs: list[float]):
    (judged,) = judge([paired(pairs)])
    spread = judged.estimate.spread
    figures = [judged.estimate.ratio, *(spread.interval(0.95) if spread else ())]
    assert all(math.isfinite(figure) for figure in figures)

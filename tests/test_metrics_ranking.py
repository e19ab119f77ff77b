"""NDCG and HR of a single relevant item, ties averaged."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench.metrics.ranking import ranking_quality
from fsbench.samples import Jagged


def count_above_and_tied(scores, targets, seen=None):
    """int64[users, 2] from float64[users, items], the obvious way; seen items but the target do not rank."""
    counts = []
    for user, target in enumerate(targets):
        ranked = np.ones(scores.shape[1], bool)
        if seen is not None:
            ranked[seen.values[seen.offsets[user] : seen.offsets[user + 1]]] = False
        ranked[target] = False
        rivals = scores[user][ranked]
        counts.append(((rivals > scores[user, target]).sum(), (rivals == scores[user, target]).sum()))
    return np.array(counts, np.int64).reshape(-1, 2)


def quality(*counts, k=10):
    return ranking_quality(np.array(counts, np.int64).reshape(-1, 2), k)


def gain(place, k=10):
    return 1 / np.log2(place + 2) if place < k else 0.0


@pytest.mark.parametrize("above", [0, 1, 4, 9, 10, 500])
def test_without_ties_the_gain_is_that_of_the_place(above):
    result = quality((above, 0))
    assert result.ndcg.mean == pytest.approx(gain(above), abs=1e-15)
    assert result.hr.mean == (above < 10)


counts = st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), min_size=1, max_size=6)


@given(counts, st.integers(1, 12))
def test_ties_give_the_mean_over_the_tied_places(rows, k):
    result = quality(*rows, k=k)
    places = [range(above, above + tied + 1) for above, tied in rows]
    assert result.ndcg.mean == pytest.approx(np.mean([np.mean([gain(p, k) for p in tie]) for tie in places]))
    assert result.hr.mean == pytest.approx(np.mean([np.mean([p < k for p in tie]) for tie in places]))


@pytest.mark.parametrize("items", [1, 7, 10, 11, 1682])
def test_constant_scores_get_what_chance_would(items):
    constant = count_above_and_tied(np.zeros((3, items)), [0, items // 2, items - 1])
    result = ranking_quality(constant)
    assert result.ndcg.mean == pytest.approx(sum(gain(p) for p in range(min(10, items))) / items)
    assert result.hr.mean == pytest.approx(min(10, items) / items)


def test_seen_items_do_not_rank_but_a_seen_target_does():
    scores = np.array([[5.0, 4.0, 3.0, 3.0], [5.0, 4.0, 3.0, 2.0]])
    seen = Jagged(np.array([0, 3, 2]), np.array([2, 1]))
    assert count_above_and_tied(scores, [2, 2], seen).tolist() == [[1, 0], [2, 0]]


def test_the_standard_error_is_that_of_a_mean():
    hits = quality((0, 0), (0, 0), (0, 0), (99, 0)).hr
    assert hits.mean == 0.75
    assert hits.standard_error == pytest.approx(0.25)


def test_one_user_has_no_standard_error():
    assert quality((0, 0)).ndcg.standard_error is None


def test_no_users_have_no_quality():
    assert quality() is None


def test_the_order_in_which_ranks_report_does_not_change_a_bit():
    rng = np.random.default_rng(0)
    table = rng.integers(0, 30, (943, 2))
    summed = sum(np.where((np.arange(943) % 3 == rank)[:, None], table, 0) for rank in (2, 0, 1))
    assert ranking_quality(summed) == ranking_quality(table)


def test_negative_counts_are_refused_naming_the_user():
    with pytest.raises(ValueError, match=r"user 1: counts \[0, -1\]"):
        quality((0, 0), (0, -1))

"""The synthetic workload: lengths, popularity, and order that carries signal."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench.errors import UserError
from fsbench.options import build_options
from fsbench_workloads import keyed
from fsbench_workloads.long_cpu import LongCpu
from fsbench_workloads.markov import EXPONENT, FOLLOW, OFFSET, STEPS, ItemChain


@pytest.fixture(scope="module")
def workload():
    made = LongCpu(LongCpu.Options(eval_users=1000))
    made.prepare(None, 0)
    return made


def test_lengths_are_long_and_uneven(workload):
    lengths = workload.histories(np.arange(4000)).lengths
    assert lengths.min() >= 2
    assert lengths.max() == 2100
    assert lengths.mean() == pytest.approx(461, rel=0.05)
    assert lengths.std() / lengths.mean() > 0.9


def test_held_out_histories_are_not_those_trained_on(workload):
    ranking = workload.evaluation()
    trained = workload.histories(np.arange(1000)).lengths
    assert (ranking.seen.lengths + 1 != trained).mean() > 0.9


def test_all_categories_are_equally_large_give_or_take_one():
    sizes = np.bincount(ItemChain(1000, 7, seed=0).category)
    assert len(sizes) == 7
    assert sizes.max() - sizes.min() <= 1


def test_a_longer_history_begins_with_the_shorter_one():
    chain = ItemChain(100, 9, seed=1)
    index = np.array([5, 6])
    short = chain.histories("s", index, np.array([3, 0])).values
    long = chain.histories("s", index, np.array([10, 4])).values
    np.testing.assert_array_equal(short, long[:3])


def walk(items: int, categories: int, seed: int, index: int, length: int) -> list[int]:
    """A history of stream `s`, event by event: the chain as one would write it with a loop."""
    item_of_rank = keyed.permutation(items, seed, "catalogue").tolist()

    def drawn(purpose: str, position: int) -> float:
        return float(keyed.uniform(seed, f"s/{purpose}", index, position))

    def popular(number: float, among: int) -> int:
        """The first rank whose share of popularity, summed from the top, exceeds `number`."""
        sums = list(itertools.accumulate((rank + 1 + OFFSET) ** -EXPONENT for rank in range(among)))
        return next(rank for rank, total in enumerate(sums) if total > number * sums[-1])

    history, category = [], 0
    for position in range(length):
        number = drawn("item", position)
        if position == 0 or drawn("restart", position) >= FOLLOW:
            rank = popular(number, items)
        else:
            sums = itertools.accumulate(STEPS[:-1])
            category = (category + sum(total <= drawn("step", position) for total in sums)) % categories
            size = len(range(category, items, categories))
            rank = popular(number, size) * categories + category
        category = rank % categories
        history.append(item_of_rank[rank])
    return history


@given(st.integers(1, 9), st.integers(0, 3), st.lists(st.integers(0, 8), max_size=4))
def test_histories_are_those_of_the_chain_walked_event_by_event(categories, seed, lengths):
    index = 1000 + np.arange(len(lengths))
    got = ItemChain(20, categories, seed).histories("s", index, np.array(lengths, dtype=np.int64))
    expected = [walk(20, categories, seed, int(i), n) for i, n in zip(index, lengths, strict=True)]
    assert got.values.tolist() == list(itertools.chain(*expected))


def test_categories_follow_each_other_by_the_steps(workload):
    histories = workload.histories(np.arange(1000))
    category = workload.chain.category[histories.values]
    inside = np.ones(len(category), bool)
    inside[histories.offsets[:-1]] = False
    moves = (np.diff(category) % workload.options.categories)[inside[1:]]
    shares = np.bincount(moves, minlength=workload.options.categories) / len(moves)
    by_chance = (1 - FOLLOW) / workload.options.categories
    np.testing.assert_allclose(shares[: len(STEPS)], FOLLOW * np.array(STEPS) + by_chance, atol=0.005)
    np.testing.assert_allclose(shares[len(STEPS) :], by_chance, atol=0.002)


@pytest.mark.parametrize("categories", [1, 2, 3, 50])
def test_the_stated_popularity_is_what_is_counted_in_the_long_run(categories):
    chain = ItemChain(50, categories, seed=2)
    expected = chain.popularity()
    assert expected.sum() == pytest.approx(1)
    counted = np.bincount(chain.histories("s", np.arange(200), np.full(200, 1000)).values, minlength=50)
    np.testing.assert_allclose(counted / counted.sum(), expected, atol=0.003)


def ndcg_at_10(ranking, scores_of_user) -> float:
    gains = []
    for user, target in enumerate(ranking.targets):
        scores = scores_of_user(user).astype(np.float64)
        own = scores[target]
        scores[ranking.seen.take(np.array([user])).values] = -1
        place = (scores > own).sum()
        gains.append(1 / np.log2(place + 2) if place < 10 else 0.0)
    return float(np.mean(gains))


def test_what_follows_a_category_predicts_the_next_item_far_better_than_popularity(workload):
    trained = workload.histories(np.arange(4000))
    category = workload.chain.category[trained.values]
    shape = (workload.options.categories, workload.items)
    pairs = np.ravel_multi_index((category[:-1], trained.values[1:]), shape)
    follows = np.bincount(pairs, minlength=shape[0] * shape[1]).reshape(shape)

    ranking = workload.evaluation()
    last = ranking.seen.values[ranking.seen.offsets[1:] - 1]
    popularity = ndcg_at_10(ranking, lambda user: ranking.baseline_scores)
    bigram = ndcg_at_10(ranking, lambda user: follows[workload.chain.category[last[user]]])
    assert bigram > 1.6 * popularity


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"categories": "0"}, r"categories is 0, expected 1 to items \(2000\)"),
        ({"items": "10"}, r"categories is 200, expected 1 to items \(10\)"),
        ({"eval_users": "0"}, "eval_users is 0, expected at least 1"),
    ],
)
def test_an_impossible_catalogue_is_refused(text, message):
    with pytest.raises(UserError, match=message):
        build_options(LongCpu.Options, text, owner="workload long-cpu")

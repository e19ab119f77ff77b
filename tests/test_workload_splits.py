"""Leave-one-out, against a slow and obvious reference."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench.samples import Jagged
from fsbench_workloads import keyed
from fsbench_workloads.splits import heads, leave_one_out, sha256_of, tails

EVENTS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(-2, 2)), min_size=1, max_size=40)
TIE_BREAKS = st.sampled_from(["hash", "file"])


def columns(events):
    return np.array(events, dtype=np.int64).reshape(-1, 3).T


def split(events, tie_break="hash", seed=0):
    return leave_one_out(*columns(events), tie_break=tie_break, seed=seed)


def to_lists(rows: Jagged) -> list[list[int]]:
    return [row.tolist() for row in np.split(rows.values, rows.offsets[1:-1])] if len(rows.lengths) else []


def reference(events, tie_break, seed):
    """Each user's ordered (item number, time) pairs, by dictionaries and `sorted`."""
    numbers = {raw: number for number, raw in enumerate(sorted({item for _, item, _ in events}))}
    histories = {}
    for place, (user, item, time) in enumerate(events):
        tie = place if tie_break == "file" else int(keyed.bits(seed, "tie-break", user, item, time))
        histories.setdefault(user, []).append((time, tie, place, numbers[item]))
    return [[(item, time) for time, _, _, item in sorted(histories[user])] for user in sorted(histories)]


@given(EVENTS, TIE_BREAKS, st.integers(0, 3))
def test_histories_are_split_as_the_reference_splits_them(events, tie_break, seed):
    got = split(events, tie_break, seed)
    histories = reference(events, tie_break, seed)
    long = [history for history in histories if len(history) >= 3]
    train = [history[:-2] if len(history) >= 3 else history for history in histories]

    assert to_lists(got.train) == [[item for item, _ in history] for history in train]
    assert got.train_until.tolist() == [history[-1][1] for history in train]
    assert got.validation.tolist() == [history[-2][0] for history in long]
    assert got.test.tolist() == [history[-1][0] for history in long]
    assert to_lists(got.before_test()) == [[item for item, _ in history[:-1]] for history in long]
    assert got.evaluated.tolist() == [user for user, history in enumerate(histories) if len(history) >= 3]
    assert got.items == len({item for _, item, _ in events})


@given(EVENTS)
def test_tie_shares_count_events_that_share_user_and_time(events):
    got = split(events)
    keys = [(user, time) for user, _, time in events]
    assert got.tied_rows == pytest.approx(np.mean([keys.count(key) > 1 for key in keys]))
    users = sorted({user for user, _ in keys})
    last = [(user, max(time for other, time in keys if other == user)) for user in users]
    assert got.tied_last == pytest.approx(np.mean([keys.count(key) > 1 for key in last]))


@given(EVENTS, st.randoms())
def test_hashed_ties_do_not_depend_on_the_order_of_the_file(events, random):
    assert split(events).sha256 == split(random.sample(events, len(events))).sha256


TIED = [(1, item, 7) for item in (5, 3, 9, 1, 8, 2)]


def test_file_ties_keep_the_order_of_the_file():
    assert to_lists(split(TIED, "file").events) == [[3, 2, 5, 0, 4, 1]]


def test_hashed_ties_follow_the_seed_and_not_the_item_ids():
    orders = [tuple(split(TIED, seed=seed).events.values.tolist()) for seed in range(20)]
    assert len(set(orders)) > 10
    rising = (np.diff(orders, axis=1) > 0).mean()
    assert 0.3 < rising < 0.7


def test_a_user_with_fewer_than_three_events_only_trains():
    got = split([(1, 1, 1), (1, 2, 2), (2, 1, 1), (3, 1, 1), (3, 2, 2), (3, 3, 3)])
    assert to_lists(got.train) == [[0, 1], [0], [0]]
    assert got.evaluated.tolist() == [2]
    assert (got.validation.tolist(), got.test.tolist()) == ([1], [2])


def test_a_changed_event_changes_the_split_hash():
    events = [(1, 1, 1), (1, 2, 2), (1, 3, 3), (1, 4, 4)]
    swapped = [(1, 1, 1), (1, 2, 2), (1, 4, 3), (1, 3, 4)]
    assert split(events).sha256 != split(swapped).sha256


def test_a_digest_is_of_values_not_of_their_byte_order():
    values = np.arange(5, dtype=np.int64)
    assert sha256_of(values) == sha256_of(values.astype(">i8"))
    assert sha256_of(values) != sha256_of(values[::-1])


def test_heads_and_tails_cut_each_row_by_itself():
    rows = Jagged(np.arange(6), np.array([3, 0, 2, 1]))
    assert to_lists(heads(rows, np.array([2, 0, 0, 1]))) == [[0, 1], [], [], [5]]
    assert to_lists(tails(rows, np.array([2, 0, 0, 1]))) == [[1, 2], [], [], [5]]

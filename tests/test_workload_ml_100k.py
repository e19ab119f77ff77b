"""The MovieLens-100K workload: epochs, and the real file where it was fetched."""

import itertools

import numpy as np
import pytest

from fsbench.errors import DataError
from fsbench_workloads import movielens
from fsbench_workloads.ml_100k import MovieLens100K

USERS = 7
# User u's only training event is of item u, at a time that falls with u; two held-out events follow.
EVENTS = [
    (user, item, time) for user in range(1, USERS + 1) for item, time in ((user, 100 - user), (10, 200), (11, 300))
]


@pytest.fixture
def workload(tmp_path):
    def make(**options) -> MovieLens100K:
        (tmp_path / "u.data").write_text("".join(f"{u}\t{i}\t4\t{t}\n" for u, i, t in EVENTS))
        made = MovieLens100K(MovieLens100K.Options(**{"batch": 5, **options}))
        made.prepare(tmp_path, seed=3)
        return made

    return make


def users_read(workload: MovieLens100K, count: int) -> list[int]:
    return workload.histories(np.arange(count)).values.tolist()


def test_an_epoch_reads_every_user_once_in_an_order_of_its_own(workload):
    stream = users_read(workload(), 5 * USERS)
    epochs = [tuple(stream[first : first + USERS]) for first in range(0, len(stream), USERS)]
    assert all(sorted(epoch) == list(range(USERS)) for epoch in epochs)
    assert len(set(epochs)) == 5


def test_ordered_by_time_every_epoch_starts_with_the_user_who_stopped_first(workload):
    assert users_read(workload(order="time"), 2 * USERS) == 2 * list(reversed(range(USERS)))


def test_a_batch_may_straddle_epochs(workload):
    made = workload()
    loaded = [made.load(step, 0, 1).columns["items"].values.tolist() for step in range(3)]
    assert list(itertools.chain(*loaded)) == users_read(made, 15)


def test_the_split_does_not_follow_the_runs_seed(tmp_path):
    (tmp_path / "u.data").write_text("".join(f"1\t{item}\t4\t7\n" for item in range(1, 30)))

    def split_sha256(seed: int, **options) -> str:
        made = MovieLens100K(MovieLens100K.Options(**options))
        made.prepare(tmp_path, seed)
        return made.fingerprint()["split_sha256"]

    assert split_sha256(0) == split_sha256(1)
    assert len({split_sha256(0), split_sha256(0, split_seed=1), split_sha256(0, tie_break="file")}) == 3


def test_targets_are_last_events_and_popularity_counts_training_events(workload):
    ranking = workload().evaluation()
    assert ranking.targets.tolist() == [8] * USERS
    assert ranking.baseline_scores.tolist() == [1] * USERS + [0, 0]
    assert ranking.seen.values.tolist() == [number for user in range(USERS) for number in (user, 7)]


def test_the_protocol_names_the_tie_rule(workload):
    assert "ties in time by a seeded hash" in workload().evaluation().protocol
    assert "ties in time by the order of the file" in workload(tie_break="file").evaluation().protocol


def test_users_too_short_to_evaluate_are_counted(tmp_path):
    (tmp_path / "u.data").write_text("1\t1\t4\t1\n1\t2\t4\t2\n")
    made = MovieLens100K()
    made.prepare(tmp_path, 0)
    assert made.samples_available == 1
    assert made.fingerprint()["users_train_only"] == 1
    assert len(made.evaluation().users) == 0


def test_without_data_the_user_is_told_what_to_do(tmp_path):
    with pytest.raises(DataError, match="fsbench data fetch ml-100k"):
        MovieLens100K().prepare(tmp_path, 0)


@pytest.fixture(scope="module")
def real():
    try:
        path = movielens.locate()
    except DataError as error:
        pytest.skip(str(error))
    workload = MovieLens100K()
    workload.prepare(None, 0)
    if workload.fingerprint()["data_sha256"] != movielens.SHA256:
        pytest.skip(f"{path} is not the file that `fsbench data fetch` brings")
    return workload


def test_the_real_file_has_its_known_sizes_and_ties(real):
    found = real.fingerprint()
    assert (found["users"], found["items"], found["events"]) == (943, 1682, 100_000)
    assert found["users_train_only"] == 0
    assert found["tied_rows"] == pytest.approx(0.758, abs=0.001)
    assert found["tied_last"] == pytest.approx(0.440, abs=0.001)


def test_popularity_on_the_real_file_ranks_as_well_as_it_is_known_to(real):
    ranking = real.evaluation()
    gains = []
    for user, target in enumerate(ranking.targets):
        scores = ranking.baseline_scores.copy()
        own = scores[target]
        scores[ranking.seen.take(np.array([user])).values] = -1
        places = (scores > own).sum() + np.arange((scores == own).sum())
        gains.append(np.where(places < 10, 1 / np.log2(places + 2), 0).mean())
    assert np.mean(gains) == pytest.approx(0.043, abs=0.004)

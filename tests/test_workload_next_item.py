"""What both next-item workloads promise, on small instances of each."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench.errors import UserError
from fsbench.options import build_options
from fsbench.samples import Jagged, Samples
from fsbench_workloads.long_cpu import LongCpu
from fsbench_workloads.ml_100k import MovieLens100K
from fsbench_workloads.next_item import ITEMS

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def movielens_dir(tmp_path_factory):
    """Ratings of 12 users of 1 to 12 movies each, many at the same time."""
    folder = tmp_path_factory.mktemp("data")
    lines = [
        f"{user}\t{1 + (7 * user + 3 * nth) % 20}\t3\t{100 + nth // 3}\n"
        for user in range(1, 13)
        for nth in range(user)
    ]
    (folder / "u.data").write_text("".join(lines))
    return folder


@pytest.fixture(params=["ml-100k", "long-cpu"])
def make(request, movielens_dir):
    """A function that makes the workload, prepared, with `batch` and any other options."""

    def make(batch=3, seed=0, **options):
        if request.param == "ml-100k":
            kind, sizes = MovieLens100K, {"negatives": 5, "max_len": 6}
        else:
            sizes = {"negatives": 5, "max_len": 30, "items": 50, "categories": 7, "eval_users": 10}
            kind = LongCpu
        workload = kind(kind.Options(batch=batch, **{**sizes, **options}))
        workload.prepare(movielens_dir, seed)
        return workload

    return make


def assert_equal(first: Samples, second: Samples) -> None:
    np.testing.assert_array_equal(first.index, second.index)
    np.testing.assert_array_equal(first.targets, second.targets)
    np.testing.assert_array_equal(first.columns[ITEMS].values, second.columns[ITEMS].values)
    np.testing.assert_array_equal(first.columns[ITEMS].lengths, second.columns[ITEMS].lengths)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_global_batch_does_not_depend_on_how_many_ranks_read_it(make, ranks):
    alone, shared = make(batch=8), make(batch=8 // ranks)
    for step in range(4):
        parts = [shared.load(step, rank, ranks) for rank in range(ranks)]
        assert_equal(Samples.concatenate(parts), alone.load(step, 0, 1))
        np.testing.assert_array_equal(alone.load(step, 0, 1).index, np.arange(8 * step, 8 * step + 8))


def test_a_sample_does_not_depend_on_what_was_read_before(make):
    workload = make()
    late = workload.load(7, 1, 2)
    for step in range(7):
        workload.load(step, 1, 2)
    assert_equal(workload.load(7, 1, 2), late)
    assert_equal(make().load(7, 1, 2), late)


def test_another_seed_gives_another_stream(make):
    first, second = make(batch=8).load(0, 0, 1), make(batch=8, seed=1).load(0, 0, 1)
    assert first.columns[ITEMS].values.tolist() != second.columns[ITEMS].values.tolist()


def test_samples_are_cut_to_their_most_recent_events(make):
    whole, cut = make(max_len=30), make(max_len=4)
    histories = whole.histories(np.arange(9))
    samples = cut.samples(np.arange(9), histories)
    for row in range(9):
        expected = histories.take(np.array([row])).values[-4:]
        np.testing.assert_array_equal(samples.columns[ITEMS].take(np.array([row])).values, expected)
    np.testing.assert_array_equal(samples.targets, np.maximum(samples.tokens - 1, 0))
    assert samples.targets.dtype == samples.index.dtype == np.int64


def some_samples(lengths: list[int]) -> Samples:
    lengths = np.array(lengths, dtype=np.int64)
    items = Jagged(np.arange(lengths.sum()) % 20, lengths)
    return Samples(np.arange(len(lengths)) + 100, np.maximum(lengths - 1, 0), {ITEMS: items})


@pytest.mark.parametrize("lengths", [[], [0], [1], [0, 3, 1, 0]])
def test_a_batch_holds_the_histories_then_the_negatives_of_each_sample(make, lengths):
    workload = make()
    samples = some_samples(lengths)
    batch = workload.build_batch(samples, torch.float32)
    ids, tokens = batch.ids[ITEMS], sum(lengths)
    assert ids.dtype == torch.int64
    assert batch.features["lengths"].dtype == torch.int64
    assert batch.features["lengths"].tolist() == lengths
    assert ids[:tokens].tolist() == samples.columns[ITEMS].values.tolist()
    assert len(ids) == tokens + len(lengths) * workload.options.negatives
    assert ((ids >= 0) & (ids < workload.items)).all()
    assert batch.samples is samples
    assert workload.costs(samples).shape == (len(lengths),)


def test_negatives_travel_with_their_sample(make):
    workload = make()
    samples = some_samples([2, 0, 4])
    order = np.array([2, 0, 1])

    def negatives(samples):
        ids = workload.build_batch(samples, torch.float64).ids[ITEMS]
        return ids[int(samples.tokens.sum()) :].view(len(samples), -1)

    assert torch.equal(negatives(samples)[order], negatives(samples.take(order)))


def test_costs_grow_with_length_from_nothing(make):
    workload = make()
    costs = workload.costs(some_samples([0, 1, 2, 5, 9]))
    assert costs[0] == 0
    assert (np.diff(costs) > 0).all()


def test_the_ranking_covers_the_catalogue_and_its_histories_end_before_the_target(make):
    workload = make()
    ranking = workload.evaluation()
    users = len(ranking.users)
    assert users == len(ranking.targets) == len(ranking.seen.lengths) > 0
    assert ranking.table == workload.tables()[0].name
    assert ranking.baseline_scores.shape == (workload.tables()[0].rows,)
    assert ranking.baseline_scores.dtype == np.float64
    assert ((ranking.targets >= 0) & (ranking.targets < workload.items)).all()
    for row in range(users):
        encoded = ranking.users.columns[ITEMS].take(np.array([row])).values
        seen = ranking.seen.take(np.array([row])).values
        np.testing.assert_array_equal(encoded, seen[-workload.options.max_len :])
    assert f"{workload.items:,} items" in ranking.protocol
    assert "\n" not in ranking.protocol


def test_the_fingerprint_is_the_same_twice_and_holds_both_hashes(make):
    first = make().fingerprint()
    assert first == make().fingerprint()
    assert {"data", "data_sha256", "split_sha256", "items"} <= first.keys()


def test_the_table_and_the_dense_optimizer_follow_the_options(make):
    workload = make(dim=6, heads=3, table_optimizer="sgd", table_lr=0.5, lr=0.25)
    (table,) = workload.tables()
    assert (table.name, table.rows, table.dim) == ("items", workload.items, 6)
    assert (table.optimizer, table.lr) == ("sgd", 0.5)
    optimizer = workload.dense_optimizer([torch.nn.Parameter(torch.zeros(1))])
    assert optimizer.defaults["lr"] == 0.25
    assert optimizer.defaults["betas"] == (0.9, 0.98)


@pytest.mark.parametrize("kind", [MovieLens100K, LongCpu])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"batch": "0"}, "batch is 0, expected at least 1"),
        ({"negatives": "0"}, "negatives is 0, expected at least 1"),
        ({"dim": "10", "heads": "4"}, "dim 10 is not divisible by heads 4"),
        ({"max_len": "1"}, "max_len is 1, expected at least 2"),
        ({"lr": "-1"}, r"lr is -1\.0, expected more than 0"),
        ({"table_lr": "0"}, r"table_lr is 0\.0, expected more than 0"),
        ({"table_optimizer": "adam"}, "expected one of sgd, rowwise-adagrad, lazy-adam"),
        ({"dtype": "half"}, "expected one of float32, float64"),
        ({"batchsize": "3"}, "has no option 'batchsize'; did you mean batch"),
    ],
)
def test_an_impossible_option_is_refused_in_the_users_words(kind, text, message):
    with pytest.raises(UserError, match=message):
        build_options(kind.Options, text, owner="workload w")


@given(st.integers(0, 10**12), st.integers(1, 3))
def test_any_place_of_the_endless_stream_can_be_read(step, ranks):
    workload = LongCpu(LongCpu.Options(batch=2, max_len=10, items=20, categories=3))
    workload.prepare(None, 0)
    assert len(workload.load(step, ranks - 1, ranks)) == 2

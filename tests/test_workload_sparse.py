"""The workload with a collision knob: which rows a stream touches, and when it touches them again."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsbench.errors import UserError
from fsbench.options import build_options
from fsbench.samples import Samples
from fsbench_workloads.deck import AWAY, MEMORY, coprime
from fsbench_workloads.next_item import ITEMS
from fsbench_workloads.sparse import Sparse

torch = pytest.importorskip("torch")

SMALL = {"batch": 8, "block": 16, "negatives": 60, "max_len": 40, "items": 60_000}


def make(seed=0, **options) -> Sparse:
    workload = Sparse(Sparse.Options(**{**SMALL, **options}))
    workload.prepare(None, seed)
    return workload


def rows_of(workload: Sparse, samples: Samples) -> list[int]:
    return workload.build_batch(samples, torch.float32).ids[ITEMS].tolist()


def global_batches(workload: Sparse, steps: int, ranks: int = 2) -> list[set[int]]:
    """The rows that all ranks together touch in each step."""
    return [
        {row for rank in range(ranks) for row in rows_of(workload, workload.load(step, rank, ranks))}
        for step in range(steps)
    ]


def collision_rate(batches: list[set[int]]) -> float:
    shared = sum(len(batch & after) for batch, after in itertools.pairwise(batches))
    return shared / sum(map(len, batches[:-1]))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_global_batch_does_not_depend_on_how_many_ranks_read_it(ranks):
    alone, shared = make(batch=16), make(batch=16 // ranks)
    for step in range(4):
        together = Samples.concatenate([shared.load(step, rank, ranks) for rank in range(ranks)])
        assert rows_of(shared, together) == rows_of(alone, alone.load(step, 0, 1))
        assert together.tokens.tolist() == alone.load(step, 0, 1).tokens.tolist()


@given(st.lists(st.integers(0, 10**15), max_size=12), st.integers(0, 2**32))
@settings(max_examples=30)
def test_a_sample_is_the_same_alone_and_in_any_company(index, seed):
    workload = make(seed)
    index = np.array(index, np.int64)
    together, negatives = workload.histories(index), workload.negatives(index)
    assert negatives.shape == (len(index), workload.options.negatives)
    for row, number in enumerate(index):
        alone = np.array([number])
        np.testing.assert_array_equal(together.take(np.array([row])).values, workload.histories(alone).values)
        np.testing.assert_array_equal(negatives[row], workload.negatives(alone)[0])


def test_another_seed_gives_another_stream():
    index = np.arange(20)
    first, second = make(seed=0).histories(index), make(seed=1).histories(index)
    assert first.lengths.tolist() != second.lengths.tolist()
    assert not set(first.values.tolist()) & set(second.values.tolist())


@pytest.mark.parametrize("collision", [0, 0.01, 0.1, 0.3, 0.5])
def test_consecutive_global_batches_share_the_share_asked_for(collision):
    measured = collision_rate(global_batches(make(collision=collision, items=200_000), steps=60))
    assert measured == pytest.approx(collision, rel=0.1)


@pytest.mark.parametrize("collision", [0, 0.1, 0.5])
def test_the_share_holds_for_the_rows_of_every_rank_and_for_negatives_alone(collision):
    workload = make(collision=collision, items=200_000)
    batches = global_batches(workload, steps=31)
    touches: dict[str, list[bool]] = {"rank 0": [], "rank 1": [], "negatives": []}
    for step, after in enumerate(batches[1:]):
        for rank in range(2):
            samples = workload.load(step, rank, 2)
            touches[f"rank {rank}"] += [row in after for row in rows_of(workload, samples)]
            touches["negatives"] += [row in after for row in workload.negatives(samples.index).ravel().tolist()]
    for part, again in touches.items():
        assert np.mean(again) == pytest.approx(collision, rel=0.1), part


def test_a_global_batch_of_two_blocks_collides_less():
    # Of its 2 - c blocks' worth of different rows only the second block's share is in the next batch.
    measured = collision_rate(global_batches(make(collision=0.3, returning=0, batch=16), steps=20))
    assert measured == pytest.approx(0.3 / 1.7, rel=0.1)


def test_no_row_occurs_twice_in_a_block():
    workload = make(collision=0.5)
    for step, rows in enumerate(global_batches(workload, steps=20)):
        assert sum(len(rows_of(workload, workload.load(step, rank, 2))) for rank in range(2)) == len(rows)


@pytest.mark.parametrize("collision", [0, 0.1, 0.5])
def test_returning_rows_come_back_after_exactly_two_blocks_and_after_exactly_five(collision):
    batches = global_batches(make(collision=collision, returning=0.02, items=200_000), steps=30)
    away: dict[int, int] = {}
    last_touched: dict[int, int] = {}
    for step, batch in enumerate(batches):
        for row in batch:
            gap = step - last_touched.get(row, step)
            away[gap] = away.get(gap, 0) + 1
            last_touched[row] = step
    assert {gap for gap in away if gap > 1} == set(AWAY)
    for gap in AWAY:
        touched = sum(map(len, batches[gap:]))
        assert away[gap] / touched == pytest.approx(0.01, rel=0.1)


def test_without_returning_rows_a_row_that_is_left_stays_away():
    batches = global_batches(make(collision=0.2, returning=0, items=200_000), steps=30)
    for step, batch in enumerate(batches[:-2]):
        left = batch - batches[step + 1]
        assert not any(left & later for later in batches[step + 2 :])


def test_the_stream_goes_evenly_over_the_whole_table():
    workload = make(items=MEMORY * 16 * 100)
    seen = set().union(*global_batches(workload, steps=40))
    tenths = np.bincount(np.array(list(seen)) * 10 // workload.items)
    np.testing.assert_allclose(tenths / len(seen), np.full(10, 0.1), rtol=0.05)


def test_lengths_are_short_and_uneven_and_their_mean_is_the_stated_one():
    workload = make(max_len=400, items=300_000)
    lengths = workload.histories(np.arange(20_000)).lengths
    assert (lengths.min(), lengths.max()) == (2, 400)
    assert lengths.mean() == pytest.approx(workload.sizing()["tokens_per_rank"] / 8, rel=0.02)
    assert lengths.std() / lengths.mean() > 0.8


@pytest.mark.parametrize("lengths", [[], [7]])
def test_a_batch_of_few_samples_or_none_has_the_same_tensors(lengths):
    workload = make()
    samples = workload.load(0, 0, 1).take(np.arange(len(lengths)))
    batch = workload.build_batch(samples, torch.float32)
    assert batch.ids[ITEMS].dtype == batch.features["lengths"].dtype == torch.int64
    assert len(batch.ids[ITEMS]) == samples.tokens.sum() + 60 * len(lengths)


def test_the_fingerprint_holds_the_sizing_and_tells_streams_apart():
    first = make().fingerprint()
    assert first == make().fingerprint()
    assert first["data_sha256"] != make(negatives=61).fingerprint()["data_sha256"]
    assert first["data_sha256"] != make(collision=0.2).fingerprint()["data_sha256"]
    assert (first["collision"], first["items"], first["block"]) == (0.1, 60_000, 16)


def test_the_sizing_is_that_of_the_batches():
    workload = make(dim=32)
    sizing = workload.sizing()
    rows = [len(set(rows_of(workload, workload.load(step, rank, 2)))) for step in range(60) for rank in range(2)]
    assert sizing["unique_rows_per_rank"] == pytest.approx(np.mean(rows), rel=0.03)
    assert sizing["exchanged_bytes_per_step"] == pytest.approx(2 * sizing["unique_rows_per_rank"] * 32 * 4)
    # Half of a rank's rows come from the other rank, and as many gradients go back, at 50 MB/s.
    assert sizing["exchange_s_at_400mbit"] == pytest.approx(sizing["unique_rows_per_rank"] * 32 * 4 / 50e6)


def test_there_is_no_ranking_and_the_table_is_that_of_the_options():
    workload = make()
    (table,) = workload.tables()
    assert workload.evaluation() is None
    assert (table.rows, table.dim, table.optimizer) == (60_000, 64, "rowwise-adagrad")


@given(st.lists(st.integers(1, 10**9), max_size=20))
def test_strides_are_coprime_to_their_sizes(sizes):
    strides = coprime(np.array(sizes, np.int64))
    assert [math.gcd(stride, size) for stride, size in zip(strides.tolist(), sizes, strict=True)] == [1] * len(sizes)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 100, 997, 30_030])
def test_a_stride_permutes_and_puts_neighbours_evenly_over_the_whole(size):
    places = np.arange(size) * coprime(np.array([size]))[0] % size
    assert np.array_equal(np.sort(places), np.arange(size))
    if size >= 100:
        share = places[: size // 4] < size // 2
        assert share.mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"collision": "0.6"}, r"collision is 0\.6, expected 0 to 0\.5"),
        ({"collision": "-0.1"}, r"collision is -0\.1, expected 0 to 0\.5"),
        ({"collision": "nan"}, "collision"),
        ({"returning": "0.2"}, r"returning is 0\.2, expected 0 to 0\.1"),
        ({"block": "0"}, "block is 0, expected at least 1"),
        (
            {"items": "100000"},
            r"items is 100000, expected at least 1458176: 32 blocks of 32 samples of up to 400 \+ 1024 rows",
        ),
        ({"batch": "0"}, "batch is 0, expected at least 1"),
    ],
)
def test_an_impossible_option_is_refused_in_the_users_words(text, message):
    with pytest.raises(UserError, match=message):
        build_options(Sparse.Options, text, owner="workload sparse")

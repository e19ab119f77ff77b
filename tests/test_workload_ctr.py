"""Click-through examples from three sources: one pass in the order of time, and what is held out."""

import gzip
import hashlib
import itertools
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsbench.errors import DataError, UserError
from fsbench.options import build_options
from fsbench.samples import Samples
from fsbench_workloads import keyed, movielens
from fsbench_workloads.clicks_criteo import CATEGORICAL, DENSE, CriteoFile
from fsbench_workloads.clicks_movielens import HISTORY, earlier, liked_before
from fsbench_workloads.clicks_synthetic import zipf
from fsbench_workloads.ctr import TABLE, ClickThroughRate

torch = pytest.importorskip("torch")

TINY = {"batch": 4, "dim": 4, "hidden": 6, "rows": 50, "eval_samples": 30}


def make(data_dir=None, seed=3, **options) -> ClickThroughRate:
    workload = ClickThroughRate(ClickThroughRate.Options(**{**TINY, **options}))
    workload.prepare(data_dir, seed)
    return workload


def same(ours: Samples, theirs: Samples) -> bool:
    pairs = zip(ours.columns.values(), theirs.columns.values(), strict=True)
    return all(a.values.tolist() == b.values.tolist() and a.lengths.tolist() == b.lengths.tolist() for a, b in pairs)


# ---- every source


@pytest.fixture(params=["synthetic", "ml-100k", "criteo"])
def workload(request, tmp_path):
    if request.param == "synthetic":
        return make()
    if request.param == "ml-100k":
        return make(write_ratings(tmp_path), source="ml-100k")
    return make(source=str(write_lines(tmp_path, 120)))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_global_batch_is_the_next_samples_of_the_stream_whatever_the_ranks(workload, ranks):
    size = 4 * ranks
    for step in range(3):
        together = Samples.concatenate([workload.load(step, rank, ranks) for rank in range(ranks)])
        assert together.index.tolist() == list(range(size * step, size * (step + 1)))
        assert same(together, workload.samples(together.index))


def test_a_sample_is_the_same_alone_and_in_any_company(workload):
    index = np.array([7, 3, 20, 21, 22, 3])
    together = workload.samples(index)
    for place, number in enumerate(index):
        assert same(together.take(np.array([place])), workload.samples(np.array([number])))


def test_no_held_out_sample_is_ever_trained(workload):
    held_out = workload.source.held_out
    assert len(held_out)
    assert held_out.start == workload.source.train if workload.source.train else held_out.start > 10**18


def test_every_row_is_of_its_features_own_part_of_the_table(workload):
    samples = workload.samples(np.arange(40))
    (table,) = workload.tables()
    ends = np.cumsum(workload.source.rows)
    assert table.rows == ends[-1]
    features = np.repeat(np.tile(np.arange(len(ends)), 40), samples.columns["bags"].values)
    rows = samples.columns["rows"].values
    assert (rows < ends[features]).all()
    assert (rows >= (ends - workload.source.rows)[features]).all()


def test_the_model_returns_the_sum_of_the_samples_log_losses(workload):
    batch = workload.build_batch(workload.samples(np.arange(12)), torch.float64)
    torch.manual_seed(0)
    model = workload.build_model(torch.float64)
    rows = {TABLE: torch.randn(len(batch.ids[TABLE]), 4, dtype=torch.float64)}
    probability = model.logits(batch, rows).sigmoid()
    clicked = batch.features["clicked"].bool()
    expected = -torch.where(clicked, probability, 1 - probability).log().sum()
    torch.testing.assert_close(model(batch, rows), expected)
    assert torch.equal(batch.features["clicked"].bool(), torch.from_numpy(workload.source.read(np.arange(12)).clicked))


def test_a_rank_without_samples_has_a_batch_of_the_same_types_and_no_loss(workload):
    some = workload.samples(np.arange(3))
    full, empty = (workload.build_batch(of, torch.float32) for of in (some, some.take(np.arange(0))))
    assert {name: value.dtype for name, value in full.features.items()} == {
        name: value.dtype for name, value in empty.features.items()
    }
    model = workload.build_model(torch.float32)
    loss = model(empty, {TABLE: torch.zeros(0, 4, requires_grad=True)})
    loss.backward()
    assert loss == 0


def test_a_step_beyond_the_pass_is_an_error_that_says_how_many_there_are(workload):
    if workload.source.train is None:
        assert workload.steps_available(2) is None
        return
    available = workload.source.train // 8
    assert workload.steps_available(2) == available
    assert len(workload.load(available - 1, 1, 2)) == 4
    with pytest.raises(DataError, match=f"^step {available}: one pass over .* has {available} steps of 4 samples"):
        workload.load(available, 0, 2)


def test_the_evaluation_is_over_the_first_held_out_samples(workload):
    evaluation = workload.evaluation()
    held_out = workload.source.held_out
    expected = np.array(held_out)[:30]
    assert len(evaluation) == len(expected)
    assert same(evaluation.samples(np.arange(2)), workload.samples(expected[:2]))
    assert evaluation.clicked.tolist() == workload.source.read(expected).clicked.tolist()
    assert evaluation.counts() == {"samples": len(expected), "clicks": int(evaluation.clicked.sum())}


def test_fetch_gets_what_the_source_needs(tmp_path):
    def fetched(source):
        return ClickThroughRate(ClickThroughRate.Options(source=source)).fetch(tmp_path)

    there, own = tmp_path / "ml-100k" / "ml-100k.inter", write_lines(tmp_path, 1)
    there.parent.mkdir()
    there.touch()
    assert fetched("synthetic") == "generated, nothing to fetch"
    assert fetched("ml-100k") == str(there)
    assert fetched("day.tsv") == f"{own}, a file of yours, nothing to fetch"


@pytest.mark.parametrize("option", ["batch=0", "dim=0", "rows=3", "lr=0", "table_lr=-1.0", "eval_samples=0"])
def test_options_out_of_range_are_refused(option):
    key, value = option.split("=")
    with pytest.raises(UserError, match=f"{key} is {value}"):
        build_options(ClickThroughRate.Options, {key: value}, owner="workload ctr")


# ---- the model


def test_each_feature_is_the_sum_of_its_rows_and_all_pairs_are_multiplied():
    from fsbench.workload import Batch
    from fsbench_workloads.dlrm import DLRM

    torch.manual_seed(1)
    model = DLRM(table="t", dense=2, categorical=2, dim=3, hidden=4, dtype=torch.float64)
    rows = torch.randn(4, 3, dtype=torch.float64)
    dense = torch.randn(2, 2, dtype=torch.float64)
    # The first sample has two rows in its first feature and one in its second, the next has none and one.
    batch = Batch(None, {}, {"dense": dense, "bags": torch.tensor([2, 1, 0, 1])})
    found = model.logits(batch, {"t": rows})
    for sample, (one, other) in enumerate([(rows[0] + rows[1], rows[2]), (torch.zeros(3).double(), rows[3])]):
        bottom = model.bottom(dense[sample]).relu()
        products = torch.stack([one @ bottom, other @ bottom, other @ one])
        torch.testing.assert_close(found[sample], model.top(torch.cat([bottom, products]))[0])


# ---- synthetic


def test_another_seed_gives_another_stream_and_the_same_seed_the_same():
    first, again, other = (make(seed=seed).fingerprint()["data_sha256"] for seed in (1, 1, 2))
    assert first == again != other


@given(st.integers(1, 10**6), st.floats(0, 1, exclude_max=True))
def test_zipf_values_are_rows_of_the_table(rows, uniform):
    assert 0 <= zipf(np.array([uniform]), np.array([rows]))[0] < rows


def test_popularity_falls_with_the_number_as_the_exponent_says():
    values = zipf((np.arange(10**6) + 0.5) / 10**6, np.array([10_000]))
    counts = np.bincount(values)
    low, high = 20, 500
    slope = np.log(counts[high - 20 : high + 20].sum() / counts[low - 2 : low + 2].sum() / 10) / np.log(high / low)
    assert slope == pytest.approx(-1.1, abs=0.05)


def test_clicks_have_the_planted_probability():
    source = make(rows=1000).source
    places = np.arange(40_000)
    probability, clicked = source.probability(places), source.read(places).clicked
    for part in np.array_split(np.argsort(probability), 8):
        error = np.sqrt((probability[part] * (1 - probability[part])).sum()) / len(part)
        assert clicked[part].mean() == pytest.approx(probability[part].mean(), abs=4 * error)
    assert 0.2 < clicked.mean() < 0.3


# ---- MovieLens-100K


def write_ratings(folder, users=12, events=10):
    """`events` ratings of each user, two in a second; the next user comes when the one before has gone."""
    lines = [
        f"{user}\t{1 + (user * 7 + event) % 30}\t{1 + (user + event) % 5}\t{10_000 * user + event // 2}\n"
        for user, event in itertools.product(range(1, users + 1), range(events))
    ]
    (folder / "u.data").write_text("".join(reversed(lines)))
    return folder


def test_ratings_come_in_the_order_of_time_and_a_4_is_a_click(tmp_path):
    source = make(write_ratings(tmp_path), source="ml-100k").source
    examples = source.read(np.arange(120))
    users = examples.bags.take(np.arange(0, 600, 5)).values
    assert users.tolist() == [user for user in range(12) for _ in range(10)]
    assert examples.clicked.sum() == 12 * 4
    assert (source.train, source.held_out) == (108, range(108, 120))


EVENTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 6), st.booleans()), max_size=40)


@given(EVENTS)
@settings(max_examples=60)
def test_nothing_of_the_same_second_or_later_is_known_of_a_key(events):
    events = sorted(events, key=lambda event: event[1])
    key, time, item, liked = (np.array([event[part] for event in events], np.int64) for part in range(4))
    before = [[k == key[n] and t < time[n] for k, t, *_ in events] for n in range(len(events))]
    assert earlier(key, time, liked).tolist() == [liked[mask].sum() for mask in np.array(before, bool)]
    bags = liked_before(key, time, item, liked.astype(bool))
    for n, mask in enumerate(before):
        expected = [event[2] for event, known in zip(events, mask, strict=True) if known and event[3]]
        assert bags.take(np.array([n])).values.tolist() == expected[-HISTORY:]


def test_ties_are_ordered_by_a_hash_whatever_the_order_of_the_file(tmp_path):
    lines = [f"1\t{item}\t{1 + item % 5}\t7\n" for item in range(1, 40)]
    digests = []
    for name, order in (("a", lines), ("b", lines[::-1])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "u.data").write_text("".join(order))
        digests.append(make(tmp_path / name, source="ml-100k").fingerprint()["split_sha256"])
    assert digests[0] == digests[1]


def test_the_real_file_has_its_known_sizes():
    try:
        movielens.locate()
    except DataError as error:
        pytest.skip(str(error))
    workload = make(source="ml-100k", eval_samples=10_000)
    found = workload.fingerprint()
    if found["data_sha256"] != movielens.SHA256:
        pytest.skip("not the file that `fsbench data fetch` brings")
    assert (found["users"], found["items"], found["events"], found["clicks"]) == (943, 1682, 100_000, 55_375)
    assert (workload.samples_available, len(workload.evaluation())) == (90_000, 10_000)


# ---- a Criteo file


def line(number: int) -> str:
    """Every field has something missing somewhere."""
    dense = ["" if (number + f) % 5 == 0 else str(number * (f + 1) - 3) for f in range(DENSE)]
    values = ["" if (number + f) % 7 == 0 else f"{(number * 31 + f) % 200:08x}" for f in range(CATEGORICAL)]
    return "\t".join([str(int(number % 3 == 0)), *dense, *values])


def write_lines(folder, count, last_newline=True):
    path = folder / "day.tsv"
    path.write_text("\n".join(map(line, range(count))) + "\n" * last_newline)
    return path


def packed(path):
    """The same lines in a file of gzip."""
    target = path.with_name("day.gz")
    target.write_bytes(gzip.compress(path.read_bytes()))
    return target


@pytest.mark.parametrize("as_it_lies", [lambda path: path, packed], ids=["plain", "gzip"])
@pytest.mark.parametrize(("count", "last_newline"), [(1, True), (63, False), (64, True), (65, True), (300, False)])
def test_a_file_is_read_as_its_lines_say(tmp_path, count, last_newline, as_it_lies):
    workload = make(source=str(as_it_lies(write_lines(tmp_path, count, last_newline))))
    assert (workload.source.train, workload.source.held_out) == (count - count // 10, range(count - count // 10, count))
    found = workload.source.read(np.arange(count))
    for number in range(count):
        label, *fields = line(number).split("\t")
        dense, values = fields[:DENSE], fields[DENSE:]
        assert found.clicked[number] == (label == "1")
        expected = [np.log1p(max(int(text or 0), 0)) for text in dense]
        np.testing.assert_allclose(found.dense[number], expected, rtol=1e-6)
        rows = [
            int(keyed.bits(0, "criteo", feature, int(text, 16) + 1 if text else 0) % np.uint64(50))
            for feature, text in enumerate(values)
        ]
        assert found.bags.values[number * CATEGORICAL :][:CATEGORICAL].tolist() == rows


LINES = st.lists(st.integers(0, 199), min_size=1, max_size=12)


@given(st.lists(LINES, min_size=1, max_size=6))
@settings(max_examples=12)
def test_lines_are_the_same_in_whatever_order_they_are_asked_for(reads):
    with tempfile.TemporaryDirectory() as folder:
        path = write_lines(Path(folder), 200)
        plain, gz = (CriteoFile(either, rows=50) for either in (path, packed(path)))
        whole = plain.read(np.arange(200))
        for places in map(np.array, reads):
            for source in (plain, gz):
                found = source.read(places)
                assert found.bags.values.tolist() == whole.bags.values.reshape(200, -1)[places].ravel().tolist()
                assert found.clicked.tolist() == whole.clicked[places].tolist()


def test_one_pass_over_a_packed_file_goes_forward(tmp_path, monkeypatch):
    """Each step back would unpack all that came before again."""
    workload = make(source=str(packed(write_lines(tmp_path, 300))))
    workload.load(0, 0, 2)
    rewound = []
    monkeypatch.setattr(gzip._GzipReader, "_rewind", lambda reader: rewound.append(reader))
    for step in range(1, workload.steps_available(2)):
        workload.load(step, 0, 2)
    assert rewound == []


def test_threads_go_forward_in_a_packed_file_each_at_its_own_pace(tmp_path, monkeypatch):
    workload = make(source=str(packed(write_lines(tmp_path, 300))))
    rewound = []
    with ThreadPoolExecutor(1) as other:
        behind = lambda step: other.submit(workload.load, step, 1, 2).result()  # noqa: E731
        first = workload.load(1, 0, 2), behind(0)
        monkeypatch.setattr(gzip._GzipReader, "_rewind", lambda reader: rewound.append(reader))
        for step in range(2, workload.steps_available(2)):
            workload.load(step, 0, 2)
            behind(step - 1)
    assert rewound == []
    assert [samples.index[0] for samples in first] == [2 * len(first[0]), len(first[0])]


def test_the_fingerprint_is_of_all_lines_packed_or_not(tmp_path):
    path = write_lines(tmp_path, 300)
    plain, gz = (make(source=str(either)).fingerprint() for either in (path, packed(path)))
    assert plain == gz
    assert plain["data_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_is_looked_for_in_the_data_folder(tmp_path):
    write_lines(tmp_path, 20)
    assert make(tmp_path, source="day.tsv").source.train == 18


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "1",
        line(5) + "\t",
        line(5).replace("\t", ",", 1),
        "2" + line(5)[1:],
        line(5)[1:],
        line(5).partition("\t")[2],
        line(5).replace("\t7\t", "\t7.5\t"),
        line(5)[:-1] + "g",
        line(5)[:-1] + "\u00e9",
        line(5) + "0" * 20,
    ],
)
def test_a_malformed_line_is_named_when_it_is_read(tmp_path, broken):
    path = write_lines(tmp_path, 100)
    assert broken != line(5)
    replace_line(path, 70, broken)
    workload = make(source=str(path))
    workload.source.read(np.arange(70))
    with pytest.raises(DataError) as error:
        workload.source.read(np.arange(64, 80))
    assert str(error.value).startswith(f"{path}:71: expected 40 tab-separated fields")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("number", [0, 95])
def test_a_malformed_line_that_is_first_or_held_out_is_found_before_anything_is_trained(tmp_path, number):
    path = write_lines(tmp_path, 100)
    replace_line(path, number, "label\tI1")
    with pytest.raises(DataError, match=rf"day\.tsv:{number + 1}: expected 40"):
        make(source=str(path))


def replace_line(path, number, text):
    lines = path.read_text().splitlines()
    lines[number] = text
    path.write_text("\n".join(lines) + "\n")


GZIP = gzip.compress(line(0).encode() + b"\n")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "no such file; source is synthetic, ml-100k or a Criteo TSV file"),
        (b"", "holds no examples"),
        (gzip.compress(b""), "holds no examples"),
        (GZIP[:-20], "ended before the end-of-stream marker"),
        (GZIP[:-8] + bytes(8), "CRC check failed"),
        (GZIP[:10] + b"\xff" * 50, "invalid block type"),
    ],
    ids=["none", "empty", "packed and empty", "cut", "other sum", "damaged"],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path, content, reason):
    if content is not None:
        (tmp_path / "day.tsv").write_bytes(content)
    with pytest.raises(DataError, match=rf"day\.tsv: .*({reason})"):
        make(tmp_path, source="day.tsv")


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(DataError, match="not a regular file"):
        make(source=str(tmp_path))


def test_a_file_that_was_cut_since_is_an_error_of_the_line_that_is_gone(tmp_path):
    path = write_lines(tmp_path, 100)
    workload = make(source=str(path))
    write_lines(tmp_path, 20)
    with pytest.raises(DataError, match=r"day\.tsv:21: expected 40"):
        workload.source.read(np.arange(15, 25))

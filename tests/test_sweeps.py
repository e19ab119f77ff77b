"""Sweeps: what a file asks for, what is predicted, and the published figures."""

import csv
import importlib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fsbench import __version__
from tests.fakes import install

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "examples" / "sweeps"
PUBLISHED = ROOT / "results" / "balancing-sweeps"

TINY = """
title = "Tiny"
metric = "{metric}"
sharding = ["naive", "cost-aware"]
lengths = ["{lengths}"]
cap = [10, 1000]
ranks = [2]
samples_per_rank = [4]
cost = ["length"]
batches = 3
seeds = [0, 1, 2]
"""


@pytest.fixture
def script(monkeypatch):
    """The module of the command; modules of the sweep are beside it."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("predict")


@pytest.fixture
def run(script, tmp_path):
    """Runs the command on a file of that text; its result, and the folder of the tables."""

    def run(text):
        (tmp_path / "tiny.toml").write_text(text)
        out = tmp_path / "out"
        return CliRunner().invoke(script.main, ["--out", str(out), str(tmp_path / "tiny.toml")]), out

    return run


def tiny(metric="straggler", lengths="gamma:shape=0.78,scale=610"):
    return TINY.format(metric=metric, lengths=lengths)


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def drawn(seed, cap, batches=3, ranks=2, each=4):
    """The same histories as the sweep, [batches, ranks, samples], in order of arrival."""
    lengths = [np.random.default_rng((seed, step)).gamma(0.78, 610, (ranks, each)) for step in range(batches)]
    return np.ceil(lengths).clip(1, cap)


def test_a_straggler_share_is_that_of_the_drawn_histories_over_the_seeds(run):
    result, out = run(tiny())
    assert result.exit_code == 0, result.output
    loads = [drawn(seed, cap=1000).sum(axis=2) for seed in range(3)]
    shares = [1 - load.mean(axis=1).sum() / load.max(axis=1).sum() for load in loads]
    row = next(r for r in rows(out / "tiny.csv") if (r["cap"], r["sharding"]) == ("1000", "naive"))
    assert float(row["median"]) == pytest.approx(np.median(shares))
    assert (float(row["least"]), float(row["most"])) == pytest.approx((min(shares), max(shares)))


def test_a_padding_share_is_that_of_every_ranks_batch_padded_to_its_longest(run):
    _, out = run(tiny(metric="padding"))
    lengths = [drawn(seed, cap=10) for seed in range(3)]
    shares = [1 - of_seed.sum() / (4 * of_seed.max(axis=2)).sum() for of_seed in lengths]
    row = next(r for r in rows(out / "tiny.csv") if (r["cap"], r["sharding"]) == ("10", "naive"))
    assert float(row["median"]) == pytest.approx(np.median(shares))


def test_the_bound_is_what_remains_where_one_history_is_longer_than_a_ranks_share(run):
    _, out = run(tiny(lengths="lognormal:mean=3,sigma=2"))
    naive, balanced, bound = (float(row["median"]) for row in rows(out / "tiny.csv")[3:])
    assert 0.05 < bound <= balanced < naive


@pytest.mark.parametrize("metric", ["straggler", "padding"])
def test_histories_of_one_length_make_nobody_wait_and_need_no_padding(run, metric):
    _, out = run(tiny(metric, "normal:mean=6,sd=0"))
    assert {float(row["most"]) for row in rows(out / "tiny.csv")} == {0.0}


def test_a_table_says_what_was_varied_and_that_nothing_was_trained(run):
    _, out = run(tiny(lengths="normal:mean=6,sd=0"))
    assert (out / "tiny.md").read_text() == (
        "# Tiny\n\n"
        "Predicted from costs: nothing was trained and no time measured. Lengths are synthetic.\n\n"
        "straggler share in %: median over seeds [0, 1, 2] [least, most], 3 global batches a seed; "
        "lengths `normal:mean=6,sd=0`; ranks 2; samples_per_rank 4; cost `length`. "
        f"fsbench {__version__}, numpy {np.__version__}.\n\n"
        "| cap | naive | cost-aware | bound |\n"
        "| --- | --- | --- | --- |\n"
        "| 10 | 0.0000 [0.0000, 0.0000] | 0.0000 [0.0000, 0.0000] | 0.0000 [0.0000, 0.0000] |\n"
        "| 1,000 | 0.0000 [0.0000, 0.0000] | 0.0000 [0.0000, 0.0000] | 0.0000 [0.0000, 0.0000] |\n"
    )


def test_every_line_of_the_csv_is_marked_as_predicted_and_tells_its_whole_setting(run):
    _, out = run(tiny(lengths="normal:mean=6,sd=0"))
    assert (out / "tiny.csv").read_text().splitlines()[:2] == [
        "kind,metric,lengths,cap,ranks,samples_per_rank,cost,sharding,median,least,most,batches,seeds",
        'predicted,straggler,"normal:mean=6,sd=0",10,2,4,length,naive,0.0,0.0,0.0,3,0 1 2',
    ]


PAIRS = '''
    """Stand-in for any strategy that somebody installs."""

    import numpy as np

    from fsbench.axes import Sharding


    class Pairs(Sharding):
        """Heaviest with lightest."""

        def assign(self, batch):
            ranks = np.empty(len(batch.costs), np.int64)
            order = np.argsort(batch.costs, kind="stable")
            n = np.arange(len(order))
            ranks[order] = np.minimum(n, len(n) - 1 - n) % batch.ranks
            return ranks
'''


def test_any_installed_strategy_can_be_swept(run, tmp_path, monkeypatch):
    install(tmp_path / "site", "acme", {"sharding": {"pairs": "acme_pairs:Pairs"}}, {"acme_pairs.py": PAIRS})
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    result, out = run(tiny().replace('"cost-aware"', '"pairs"'))
    assert result.exit_code == 0, result.output
    naive, pairs, _ = (float(row["median"]) for row in rows(out / "tiny.csv")[3:])
    assert pairs < naive


LATER = '''
    """Stand-in for strategies that decide when a rank trains what it reads, as `local-pairs` does."""

    from fsbench.axes import Sharding


    class Later(Sharding):
        """What comes a step later."""

        moves = False

        def reads(self, loader):
            class Ahead:
                def load(self, step, rank, ranks):
                    return loader.load(step + 1, rank, ranks)

            return Ahead()

        def assign(self, batch):
            return batch.source
'''


def test_what_a_strategy_makes_each_rank_read_is_what_is_swept(run, tmp_path, monkeypatch):
    install(tmp_path / "site", "acme", {"sharding": {"later": "acme_later:Later"}}, {"acme_later.py": LATER})
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    _, out = run(tiny().replace('"cost-aware"', '"later"').replace("[0, 1, 2]", "[5]"))
    loads = drawn(5, cap=1000, batches=4)[1:].sum(axis=2)
    later = next(float(row["median"]) for row in rows(out / "tiny.csv")[3:] if row["sharding"] == "later")
    assert later == pytest.approx(1 - loads.mean(axis=1).sum() / loads.max(axis=1).sum())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds", "seed", "tiny.toml: unknown key 'seed'; did you mean seeds"),
        ("batches = 3", "", "tiny.toml: batches is missing; expected int"),
        ("[10, 1000]", "[]", "cap is []; expected list[int], no number below 1"),
        ("[10, 1000]", "[0]", "cap is [0]; expected list[int], no number below 1"),
        ("[10, 1000]", "10", "cap is 10; expected list[int]"),
        ("[0, 1, 2]", "[true]", "seeds is [True]; expected list[int], no number below 0"),
        ('"straggler"', '"idle"', "unknown metric 'idle'; valid: padding, straggler"),
        ("gamma:", "gama:", "unknown law of lengths 'gama'; did you mean gamma"),
        ("scale=", "theta=", "law of lengths gamma has no option 'theta'"),
        ('"length"', '"transformer"', "cost transformer needs dim=..."),
        ('"naive"', '"naiv"', "unknown sharding strategy 'naiv'; did you mean naive"),
        ("title =", "title", "tiny.toml: Expected '=' after a key"),
    ],
)
def test_a_file_that_is_no_sweep_is_refused_in_one_line_that_says_what_is_expected(run, old, new, message):
    result, _ = run(tiny().replace(old, new))
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_published_shares_of_arrival_order_come_out_again(script, path):
    """The first setting of each sweep; balanced shares may improve with their strategies."""
    sweep = script.read_sweep(path)
    setting = sweep.settings()[0]
    published = rows(PUBLISHED / f"{path.stem}.csv")[0]
    assert published["sharding"] == sweep.sharding[0] == "naive"
    assert [published[key] for key in setting._fields] == [str(value) for value in setting]
    share = importlib.import_module("prediction").over_seeds(sweep, setting, "naive")
    assert [float(published[key]) for key in share._fields] == pytest.approx(share, rel=1e-9)

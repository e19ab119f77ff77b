"""`fsbench run --matrix`: the built-in cells, matrix files and their faults, and what the command line replaces."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fsbench.cli.matrix_file import read_matrix
from fsbench.launch import session as launch
from fsbench.matrix import BUILT_IN, STRATEGY_AXES, Cell, product
from fsbench.results.store import ResultSet
from tests.fakes import FakeSession, command_with_acme, install_bare_ranks, record
from tests.support import TINY_LONG

EXAMPLE = Path(__file__).parent.parent / "examples" / "matrix.toml"
MATRIX = """\
workloads = ["toy"]   # "toy" has ten samples
sharding = [
    "naive",
    "cost-aware",
]
sync = ["allreduce", "shadow"]
repeats = 2
"""


fsbench = command_with_acme


@pytest.fixture
def night(tmp_path: Path) -> Path:
    (tmp_path / "night.toml").write_text(MATRIX)
    return tmp_path / "night.toml"


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    """From now on `fsbench run` records runs without running anything."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: find_spec("sys" if name == "torch" else name))
    fake = FakeSession()
    monkeypatch.setattr("fsbench.launch.session.run_session", fake)
    return fake


def dry_cells(out: str) -> list[list[str]]:
    return [line.split()[1:] for line in out.split("\n\n")[1].splitlines()[2:]]


def manifest(folder: Path = Path("out")) -> dict:
    return json.loads((folder / "manifest.json").read_text())


# The built-in matrix.


def test_the_built_in_matrix_is_sixteen_cells_each_once(fsbench):
    outcome = fsbench("run", "--matrix", "--dry-run")
    assert outcome.exit_code == 0, outcome.err
    cells = [Cell(*row) for row in dry_cells(outcome.out)]
    assert Counter(cells) == Counter(product(["ml-100k"], ["local:ranks=2"], BUILT_IN))
    assert len(set(cells)) == 16
    assert [len({getattr(cell, axis) for cell in cells}) for axis in STRATEGY_AXES] == [2, 2, 2, 2]


def test_the_example_is_the_built_in_matrix():
    asked = {key: tuple(one.text for one in values) for key, values in read_matrix(EXAMPLE).items()}
    numbers = {"repeats": ("1",), "seed": ("1",), "time_limit_s": ("600",), "stall_limit_s": ("300",)}
    assert asked == {**BUILT_IN, **numbers}


def test_a_strategy_of_the_built_in_matrix_that_is_gone_is_named(fsbench, monkeypatch):
    monkeypatch.setitem(BUILT_IN, "sync", ("allreduce", "shadow-mb"))
    outcome = fsbench("run", "--matrix", "--dry-run")
    assert outcome.exit_code == 2
    assert outcome.err.startswith(
        "fsbench: error: the built-in matrix: unknown sync strategy 'shadow-mb'; did you mean"
    )


# Files.


def test_a_file_lists_what_is_run_and_what_it_leaves_out_takes_its_default(fsbench, night):
    outcome = fsbench("run", "--matrix", "night.toml", "--dry-run")
    assert outcome.out.startswith("matrix: night.toml, cells: 4, repeats: 2, runs: 8\n")
    assert dry_cells(outcome.out) == [
        ["toy", "local:ranks=2", sharding, "plain", "backend", sync]
        for sharding in ("naive", "cost-aware")
        for sync in ("allreduce", "shadow")
    ]


BAD_FILES = [
    (
        "repeats = 2\nshardng = []",
        "m.toml:2: unknown key 'shardng'; did you mean sharding? valid: clusters, collectives, embedding, repeats, "
        "seed, sharding, stall_limit_s, steps, sync, time_limit_s, workers, workloads\n",
    ),
    ('"sinc" = "none"', "m.toml:1: unknown key 'sinc'; did you mean sync or sharding? valid: clusters, "),
    ("[[exclude]]\nsync = 'x'", "m.toml:1: unknown key 'exclude'; did you mean clusters? valid: "),
    ("\n[sharding]\nname = 'x'", 'm.toml:2: sharding is {"name": "x"}, expected a list of names such as ["naive"]\n'),
    ("sync = [\n  'none',\n  3]", 'm.toml:1: sync is ["none", 3], expected a list of names such as ["allreduce"]\n'),
    ("sync = 3", 'm.toml:1: sync is 3, expected a list of names such as ["allreduce"]\n'),
    ("workloads = []", "m.toml:1: workloads is an empty list; leave it out to take ml-100k\n"),
    ("# repeats = 1\nrepeats = '2'", 'm.toml:2: repeats is "2", expected a whole number\n'),
    ("steps = 2.0", "m.toml:1: steps is 2.0, expected a whole number\n"),
    ("seed = true", "m.toml:1: seed is true, expected a whole number\n"),
    ("seed = 2024-01-01", 'm.toml:1: seed is "2024-01-01", expected a whole number\n'),
    ("seed = 1\n\nrepeats = 0", "m.toml:3: repeats=0: expected 1 or more\n"),
    ("sync = ['shadow', 'allreduce', 'shadow']", "m.toml:1: sync has shadow twice\n"),
    (
        "sync = [\n 'shadow',\n 'shadow:alpha=0.50',\n]",
        "m.toml:3: sync has shadow:alpha=0.50 twice, first as shadow\n",
    ),
    (
        "sharding = [\n 'naive', # not 'cost-awre'\n\n 'cost-awre',\n]",
        "m.toml:4: unknown sharding strategy 'cost-awre'; did you mean cost-aware? valid: cost-aware, ",
    ),
    (
        "sync = 'shadow:alfa=1'",
        "m.toml:1: sync strategy shadow (acme 1.0) has no option 'alfa'; did you mean alpha? valid: alpha\n",
    ),
    ("sync = ''", "m.toml:1: '' is not NAME or NAME:KEY=VALUE,...\n"),
    ("sync = 'none'\nrepeats 3", "m.toml:2:9: not TOML: Expected '=' after a key in a key/value pair\n"),
    ("sync = ['none'", "m.toml:1:15: not TOML: Unclosed array\n"),
    ("seed = 1\nseed = 2", "m.toml:2:9: not TOML: Cannot overwrite a value\n"),
    (b"seed = 1\nsync = '\xff'", "m.toml:2: not TOML: not UTF-8\n"),
    ("sync = " + "[" * 2000, "m.toml: nested too deeply\n"),
    ("sync" + ".a" * 90 + " = 1", 'm.toml:1: sync is {"a": {"a": {"a": '),
    ("a" * 200_000 + " = 1", "m.toml:1: unknown key 'aaaaaaa"),
    ("a" * 200_000, "m.toml:1:200001: not TOML: Expected '=' after a key in a key/value pair\n"),
    ("repeats = " + "9" * 5000, "m.toml: not TOML: a number has too many digits\n"),
    (
        "sync = [" + "1, " * 5000 + "]",
        "m.toml:1: sync is [" + "1, " * 39 + "1,..., expected a list of names such as",
    ),
    ('sync = "shadow:alpha=\\u001b[2J"', "m.toml:1: 'shadow:alpha=\\x1b[2J' has characters that cannot be printed\n"),
    ("sync = 'shadow:alpha=" + "x" * 5000 + "'", "m.toml:1: 'shadow:alpha=xxx"),
    ("sync = ['../../x']", "m.toml:1: '../../x' is not NAME or NAME:KEY=VALUE,...\n"),
    ("#" * 300_000, "m.toml: larger than 256 KiB, which no matrix needs\n"),
]


@pytest.mark.parametrize(("content", "message"), BAD_FILES)
def test_what_is_wrong_with_a_file_is_told_with_its_line(fsbench, content: str | bytes, message: str):
    Path("m.toml").write_bytes(content if isinstance(content, bytes) else content.encode())
    outcome = fsbench("run", "--matrix", "m.toml", "--dry-run")
    assert (outcome.exit_code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"fsbench: error: {message}")
    assert outcome.err.count("\n") == 1
    assert len(outcome.err) < 2100


@pytest.mark.parametrize(
    "content",
    [
        "sync" + ".a" * 100_000 + " = 1",
        "sync = {b" + """ . "a\\"'" """ * 20_000 + " = 1}",
        "[sync" + ".'a'" * 50_000 + "]",
    ],
    ids=["bare", "quoted", "table"],
)
def test_a_key_of_very_many_parts_is_refused_before_it_is_parsed(fsbench, monkeypatch, content: str):
    Path("m.toml").write_text(content)
    monkeypatch.setattr("tomllib.loads", lambda _: pytest.fail("was parsed"))
    outcome = fsbench("run", "--matrix", "m.toml", "--dry-run")
    assert (outcome.exit_code, outcome.err) == (2, "fsbench: error: m.toml: nested too deeply\n")


def names(number: int) -> str:
    return json.dumps([f"w{place}" for place in range(number)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            f"workloads = {names(1000)}\nsharding = {names(1000)}\nsync = {names(1000)}",
            "m.toml: 1000 x 1000 x 1000 names are 1,000,000,000 cells, expected at most 1,000",
        ),
        (f"workloads = {names(1001)}", "m.toml: 1001 names are 1,001 cells, expected at most 1,000"),
        (
            "repeats = 1000000000\nsync = ['shadow', 'none']",
            "m.toml: 2 cells x 1,000,000,000 repeats are 2,000,000,000 runs, expected at most 100,000",
        ),
    ],
)
def test_a_matrix_that_no_machine_could_run_is_refused_before_any_of_it_is_made(
    fsbench, monkeypatch, content: str, message: str
):
    Path("m.toml").write_text(content)
    for made in ("product", "interleave", "_choices"):
        monkeypatch.setattr(f"fsbench.cli.plan.{made}", lambda *_: pytest.fail("made something of it"))
    outcome = fsbench("run", "--matrix", "m.toml", "--dry-run")
    assert (outcome.exit_code, outcome.out, outcome.err) == (2, "", f"fsbench: error: {message}\n")


def test_a_thousand_cells_are_planned(fsbench):
    alphas = json.dumps([f"shadow:alpha={place}" for place in range(500)])
    Path("m.toml").write_text(f"sharding = ['naive', 'cost-aware']\nsync = {alphas}\nrepeats = 3")
    outcome = fsbench("run", "--matrix", "m.toml", "--dry-run")
    assert outcome.out.startswith("matrix: m.toml, cells: 1000, repeats: 3, runs: 3000\n"), outcome.err


@pytest.mark.parametrize(
    ("name", "message"),
    [("nowhere.toml", "cannot read the matrix file nowhere.toml: No such file or directory"), ("", "Is a directory")],
)
def test_a_file_that_cannot_be_read_is_named(fsbench, name: str, message: str):
    outcome = fsbench("run", "--matrix", name, "--dry-run")
    assert outcome.exit_code == 2
    assert message in outcome.err


# What the command line replaces.


@pytest.mark.parametrize(
    ("arguments", "line", "syncs"),
    [
        ("--sync shadow:alpha=0.7", "cells: 2, repeats: 2, runs: 4", ["shadow:alpha=0.7"] * 2),
        ("--set sync=shadow:alpha=0.7", "cells: 2, repeats: 2, runs: 4", ["shadow:alpha=0.7"] * 2),
        ('--set sync=["shadow","allreduce"]', "cells: 4, repeats: 2, runs: 8", ["shadow", "allreduce"] * 2),
        ("--set sync='shadow'", "cells: 2, repeats: 2, runs: 4", ["shadow"] * 2),
        ("--repeats 3", "cells: 4, repeats: 3, runs: 12", ["allreduce", "shadow"] * 2),
        ("--set repeats=6", "cells: 4, repeats: 6, runs: 24", ["allreduce", "shadow"] * 2),
    ],
)
def test_the_command_line_replaces_a_key_of_the_matrix(fsbench, night, arguments: str, line: str, syncs: list[str]):
    outcome = fsbench("run", *arguments.split(), "--matrix", "night.toml", "--dry-run")
    assert outcome.out.startswith(f"matrix: night.toml, {line}\n"), outcome.err
    assert [row[5] for row in dry_cells(outcome.out)] == syncs


def test_workloads_clusters_and_steps_are_replaced_too(fsbench, night, session):
    named = ("--workload", "long-cpu", "--on", "local:ranks=1", "--steps", "7", "--out", "out")
    assert fsbench("run", "--matrix", "night.toml", *named).exit_code == 0
    assert {(run.cell.workload, run.cell.cluster, run.steps) for run in session.ran} == {
        ("long-cpu", "local:ranks=1", 7)
    }


# What goes together.

ALL_SORTS = """\
sharding = ["naive", "quantum"]
embedding = ["prioritized", "solo"]
collectives = ["backend", "host-staged"]
sync = ["allreduce", "shadow"]
"""


def rows(table: str) -> list[list[str]]:
    return [re.split(r" {2,}", line) for line in table.splitlines()[2:]]


def test_a_dry_run_tells_what_does_not_go_together_and_what_happens_instead(fsbench):
    Path("m.toml").write_text(ALL_SORTS)
    _, _, clusters, strategies, together = fsbench("run", "--matrix", "m.toml", "--dry-run").out.split("\n\n")
    assert rows(clusters) == [["local:ranks=2", "2 local ranks, 1 torch thread each", "runs"]]
    assert rows(strategies)[:4] == [
        ["sharding", "naive", "nothing", "none", "1", "yes", "runs"],
        ["sharding", "quantum", "nothing", "none", "0", "yes", "unsupported: needs a quantum computer, found none"],
        ["embedding", "prioritized", "collectives", "ids, exchange, critical", "2", "yes", "runs"],
        ["embedding", "solo", "nothing", "none", "0", "yes", "runs"],
    ]
    once = "collectives is -: none of these uses it, so cells that differ only there run once"
    assert rows(together) == [
        ["embedding solo + sync shadow", once, "6, 13"],
        ["sharding strategy quantum (acme 1.0)", "unsupported: needs a quantum computer, found none", "8-14"],
    ]


def test_an_ignored_axis_that_was_named_is_unsupported_in_the_dry_run_too(fsbench):
    Path("m.toml").write_text(ALL_SORTS)
    named = ("--sharding", "naive", "--collectives", "backend")
    together = fsbench("run", "--matrix", "m.toml", *named, "--dry-run").out.split("\n\n")[4]
    why = "unsupported: no strategy of this cell uses collectives; it makes no difference here"
    assert rows(together) == [["embedding solo + sync shadow", why, "4"]]


def test_a_dry_run_needs_no_torch_and_writes_nothing(fsbench, night, tmp_path):
    code = """
import sys
from fsbench.cli.main import main
try:
    main(["run", "--matrix", "night.toml", "--workload", "long-cpu", "--sync", "allreduce", "--dry-run"])
except SystemExit as end:
    print("end", end.code, "torch" in sys.modules)
"""
    before = sorted(tmp_path.rglob("*"))
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "end 0 False", done.stderr
    assert sorted(tmp_path.rglob("*")) == before


# Exit codes.


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [((), 0), (("--sync", "allreduce"), 0), (("--sharding", "quantum"), 1), (("--set", "sharding=quantum"), 1)],
)
def test_what_the_matrix_alone_asks_for_may_be_unsupported(fsbench, session, arguments, exit_code: int):
    Path("m.toml").write_text("workloads = 'toy'\nsharding = ['naive', 'quantum']")
    assert fsbench("run", "--matrix", "m.toml", "--out", "out", *arguments).exit_code == exit_code
    statuses = {record["cell"]["sharding"]: record["status"] for record in ResultSet.open(Path("out")).records()}
    assert statuses["quantum"] == "unsupported"
    assert statuses.get("naive", "ok") == "ok"


@pytest.mark.parametrize(
    ("status", "arguments", "exit_code"),
    [
        ("unsupported", (), 0),
        ("unsupported", ("--sync", "shadow"), 1),
        ("fallback", (), 1),
        ("timeout", (), 1),
    ],
)
def test_what_the_ranks_find_out_counts_as_much(fsbench, night, session, monkeypatch, status, arguments, exit_code):
    def on_the_ranks(runs, result_set, *_):
        for run in runs:
            result_set.append(record(run, status=status, reason="the ranks said so"))
        return 1

    monkeypatch.setattr("fsbench.launch.session.run_session", on_the_ranks)
    assert fsbench("run", "--matrix", "night.toml", "--out", "out", *arguments).exit_code == exit_code


# Provenance, and going on.


def test_the_manifest_holds_the_matrix_by_its_name_and_its_values_as_they_were_run(fsbench, night, session, tmp_path):
    fsbench("run", "--matrix", str(night), "--sync", "shadow:alpha=0.50", "--out", "out")
    assert manifest()["matrix"] == {
        "name": "night.toml",
        "workloads": ["toy"],
        "clusters": ["local:ranks=2"],
        "sharding": ["naive", "cost-aware"],
        "embedding": ["plain"],
        "collectives": ["backend"],
        "sync": ["shadow:alpha=0.50"],
    }
    assert str(tmp_path) not in json.dumps(manifest())


def test_without_a_matrix_the_manifest_names_none(fsbench, session):
    fsbench("run", "--workload", "toy", "--out", "out")
    assert manifest()["matrix"]["name"] is None
    assert manifest()["matrix"]["sharding"] == ["naive"]


def test_another_matrix_adds_its_cells_and_runs_none_again(fsbench, night, session, tmp_path):
    fsbench("run", "--matrix", "night.toml", "--out", "out")
    before = [run.run_id for run in session.ran]
    (tmp_path / "more.toml").write_text(MATRIX.replace("'naive',", "").replace("allreduce", "shadow:alpha=0.7"))
    assert fsbench("run", "--matrix", "more.toml", "--out", "out", "--resume").exit_code == 0
    added = session.ran[len(before) :]
    assert {(run.cell.sharding, run.cell.sync, run.repeat) for run in added} == {
        (sharding, "shadow:alpha=0.7", repeat) for sharding in ("naive", "cost-aware") for repeat in (1, 2)
    }
    assert manifest()["matrix"]["name"] == "night.toml"
    assert [entry["matrix"]["name"] for entry in manifest()["resumed"]] == ["more.toml"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("steps = 4", "out was run with the default steps, not 4; its runs would not compare"),
        ("seed = 2", "out was run with seed 1, not 2; its runs would not compare"),
    ],
)
def test_a_matrix_that_changes_what_a_run_is_does_not_go_on_with_the_set(fsbench, night, session, line, message):
    fsbench("run", "--matrix", "night.toml", "--out", "out")
    ran = len(session.ran)
    night.write_text(MATRIX + line)
    outcome = fsbench("run", "--matrix", "night.toml", "--out", "out", "--resume")
    assert (outcome.exit_code, outcome.err) == (2, f"fsbench: error: {message}\n")
    assert len(session.ran) == ran


def test_data_of_a_workload_that_was_added_later_is_held_to_as_well(fsbench, night, session):
    fsbench("run", "--workload", "long-cpu", "--out", "out")
    fsbench("run", "--matrix", "night.toml", "--out", "out", "--resume")
    path = Path("out/manifest.json")
    path.write_text(path.read_text().replace("c0ffee", "decaf"))
    outcome = fsbench("run", "--matrix", "night.toml", "--out", "out", "--resume")
    assert outcome.exit_code == 2
    assert "out was run on other data of toy" in outcome.err


TINY = TINY_LONG.replace("eval_users=150", "eval_users=40")
TWO_RATES = f"""\
clusters = "bare"
workloads = ["{TINY},lr=0.001", "{TINY},lr=0.01"]
sharding = "cost-aware"
embedding = "prioritized"
steps = 6
"""


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_matrix_that_was_interrupted_and_resumed_equals_the_unbroken_one_cell_by_cell(fsbench, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    install_bare_ranks(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    Path("m.toml").write_text(TWO_RATES)
    assert fsbench("run", "--matrix", "m.toml", "--out", "whole", "--quiet").exit_code == 0
    run_to_end, started = launch.run_to_end, []

    def interrupted(command, environment, folder, names, limits, on_poll, hurry):
        def poll(beats):
            if len(started) == 2:
                signal.raise_signal(signal.SIGINT)
            on_poll(beats)

        started.append(folder)
        return run_to_end(command, environment, folder, names, limits, poll, hurry)

    monkeypatch.setattr(launch, "run_to_end", interrupted)
    assert fsbench("run", "--matrix", "m.toml", "--out", "broken", "--quiet").exit_code == 130
    assert len(ResultSet.open(Path("broken")).records()) == 1
    monkeypatch.setattr(launch, "run_to_end", run_to_end)
    assert fsbench("run", "--matrix", "m.toml", "--out", "broken", "--resume", "--quiet").exit_code == 0
    whole, broken = (ResultSet.open(Path(name)).records() for name in ("whole", "broken"))
    assert [trained(record) for record in broken] == [trained(record) for record in whole]
    assert len({trained(record)[3] for record in whole}) == 2


def trained(record: dict) -> tuple:
    """What a run is and what came out of its training: everything but the clock."""
    names = ("loss", "ndcg_at_10", "hr_at_10", "bytes_by_class", "collision_rate")
    return record["run_id"], record["cell"], record["repeat"], *(record["metrics"][name] for name in names)

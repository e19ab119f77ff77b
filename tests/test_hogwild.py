"""What several workers ask of a cell: which ones are unsupported, and why, before anything starts."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from fsbench import hogwild
from fsbench.axes import AXES, DEFAULTS
from fsbench.options import Spec
from fsbench.plugins import create
from fsbench.results.store import ResultSet
from tests.fakes import FakeSession, run_command

DENSE = "dense:batch=4,inputs=6,hidden=5,layers=1"


@pytest.fixture
def fsbench(capsys: pytest.CaptureFixture[str]):
    return partial(run_command, capsys)


def obstacle(workers: int, *, tables: bool = True, **axes: str):
    made = {axis: create(axis, Spec.parse(axes.get(axis, DEFAULTS[axis]))) for axis in AXES if axis != "collectives"}
    return hogwild.obstacle(workers, **made, tables=tables)


ASYNC = {"sync": "none", "embedding": "parameter-server"}
STEP = "with workers=2 each thread of a rank takes its steps when it comes to them; "


@pytest.mark.parametrize(
    ("axes", "axis", "reason"),
    [
        ({}, "sync", "it cannot keep such steps together"),
        (ASYNC | {"sync": "allreduce"}, "sync", "it cannot keep such steps together"),
        (ASYNC | {"sharding": "cost-aware"}, "sharding", "it moves samples between ranks in every step"),
        (
            ASYNC | {"sharding": "naive:costs=online"},
            "sharding",
            "costs=online and speeds=measured compare the steps of all ranks",
        ),
        (
            {"sync": "shadow-ma"},
            "embedding",
            "all ranks meet in it to exchange rows, unlike with tables on servers",
        ),
    ],
)
def test_what_keeps_ranks_in_step_does_not_go_with_several_workers(axes, axis, reason):
    assert obstacle(2, **axes) == (axis, STEP + reason)
    assert obstacle(1, **axes) is None


@pytest.mark.parametrize("sync", ["none", "shadow-ma", "fr-ma:every=5"])
@pytest.mark.parametrize("sharding", ["naive", "local-pairs"])
def test_what_steps_on_its_own_does_where_tables_are_on_servers_or_there_are_none(sync, sharding):
    assert obstacle(4, sync=sync, sharding=sharding, embedding="parameter-server") is None
    assert obstacle(4, sync=sync, sharding=sharding, tables=False) is None


def test_a_dry_run_tells_how_many_workers_there_are_and_what_they_rule_out(fsbench):
    outcome = fsbench(
        "run", "--workload", DENSE, "--sync", "none", "--sync", "allreduce", "--workers", "2", "--dry-run"
    )
    assert outcome.exit_code == 0
    assert outcome.out.startswith("cells: 2, repeats: 1, runs: 2, workers: 2\n")
    together = outcome.out.strip().split("\n\n")[-1].splitlines()[2:]
    (line,) = together
    assert line.startswith("sync strategy allreduce (fsbench ")
    assert f"unsupported: {STEP}it cannot keep such steps together" in line


@pytest.mark.parametrize(
    ("axes", "exit_code"),
    [
        (("--sync", "none", "--sync", "allreduce"), 1),
        (("--sync", "all"), 0),
        ((), 1),  # nothing is named, and there is nothing else
    ],
)
def test_what_several_workers_rule_out_is_recorded_and_fails_unless_only_a_product_asked_for_it(
    fsbench, monkeypatch, tmp_path, axes, exit_code
):
    monkeypatch.setattr("fsbench.launch.session.run_session", FakeSession(()))
    outcome = fsbench("run", "--workload", DENSE, *axes, "--workers", "2", "--out", str(tmp_path / "set"))
    statuses = {record["cell"]["sync"]: record["status"] for record in ResultSet.open(tmp_path / "set").records()}
    assert outcome.exit_code == exit_code
    ruled_out = {sync for sync, status in statuses.items() if status == "unsupported"}
    assert "allreduce" in ruled_out
    assert ruled_out <= {"allreduce", "grouped"}
    assert {status for sync, status in statuses.items() if sync not in ruled_out} <= {"ok"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "0"], "--workers: workers=0: expected 1 to 64"),
        (["--workers", "-1"], "--workers: workers=-1: expected 1 to 64"),
        (["--workers", "65"], "--workers: workers=65: expected 1 to 64"),
        (["--workers", "2.5"], "Invalid value for '--workers': '2.5' is not a valid integer."),
        (["--set", "workers=0"], "--set: workers=0: expected 1 to 64"),
        (["--set", "workers=two"], "--set: option workers=two: expected a whole number"),
        (["--workers", "2", "--set", "workers=3"], "workers is given twice: 3 and 2"),
    ],
)
def test_another_number_of_workers_is_refused_in_a_line(fsbench, arguments, message):
    outcome = fsbench("run", "--workload", DENSE, *arguments)
    assert (outcome.exit_code, outcome.out) == (2, "")
    assert message in outcome.err


def test_a_matrix_file_may_say_how_many_there_are_and_the_command_line_has_the_last_word(fsbench, tmp_path):
    file = tmp_path / "night.toml"
    file.write_text(f'workloads = ["{DENSE}"]\nsync = ["none"]\nworkers = 3\n')
    assert ", workers: 3\n" in fsbench("run", "--matrix", str(file), "--dry-run").out
    assert ", workers: 2\n" in fsbench("run", "--matrix", str(file), "--workers", "2", "--dry-run").out
    file.write_text("workers = 0\n")
    outcome = fsbench("run", "--matrix", str(file), "--dry-run")
    assert (outcome.exit_code, outcome.err) == (2, f"fsbench: error: {file}:1: workers=0: expected 1 to 64\n")


@pytest.fixture
def set_of(fsbench, monkeypatch, tmp_path):
    """`set_of(name, *arguments)`: the folder of a result set whose runs were not really run."""

    def run(name: str, *arguments: str):
        monkeypatch.setattr("fsbench.launch.session.run_session", FakeSession(()))
        folder = str(tmp_path / name)
        fsbench("run", "--workload", DENSE, "--sync", "none", "--sync", "shadow-ma", "--out", folder, *arguments)
        return folder

    return run


def test_manifest_record_and_table_tell_the_number_of_workers(fsbench, set_of):
    contents = ResultSet.open(Path(folder := set_of("two", "--workers", "2"))).read()
    assert contents.manifest["settings"]["workers"] == 2
    assert [record["workers"] for record in contents.records] == [2, 2]
    remark = "workers: 2 threads train on each rank, without locks over one copy of its dense parameters"
    assert remark in fsbench("show", folder).out
    assert "workers: " not in fsbench("show", set_of("one")).out


def test_sets_of_different_workers_are_compared_as_ratios_within_each_alone(fsbench, set_of):
    folders = [set_of(str(workers), "--workers", str(workers)) for workers in (1, 2, 4)]
    out = fsbench("compare", *folders).out
    assert "B with A, dense" in out
    assert "only as ratios within each set; workers: 1 in A, 2 in B" in out
    assert "only as ratios within each set; workers: 1 in A, 4 in C" in out
    assert "Cell by cell" not in out


def test_a_set_is_not_resumed_with_other_workers(fsbench, set_of):
    folder = set_of("two", "--workers", "2")
    again = ("run", "--workload", DENSE, "--sync", "none", "--resume", "--out")
    outcome = fsbench(*again, folder)
    assert outcome.exit_code == 2
    assert outcome.err == f"fsbench: error: {folder} was run with 2 workers, not 1; its runs would not compare\n"
    earlier = set_of("earlier version")
    path = Path(earlier, "manifest.json")
    path.write_text(path.read_text().replace('"workers": 1,', ""))
    assert "was run with 1 workers, not 2" in fsbench(*again, earlier, "--workers", "2").err
    assert fsbench(*again, earlier).exit_code == 0


def test_more_workers_than_samples_for_them_are_refused_with_the_numbers(fsbench, tmp_path):
    (tmp_path / "u.data").write_text("".join(f"{event}\t1\t4\t{event}\n" for event in range(1, 101)))
    cell = ("--workload", "ctr:source=ml-100k,batch=4", "--embedding", "parameter-server", "--sync", "none")
    asked = ("run", *cell, "--data-dir", str(tmp_path), "--out", str(tmp_path / "out"), "--workers", "3")
    assert fsbench(*asked, "--steps", "4").err.endswith(
        "is trained in one pass, and has 90 samples: 3 steps of 4 on each of 3 workers of 2 ranks on local:ranks=2, "
        "not 4; set --steps 3 or fewer\n"
    )
    many = [word if word != "3" else "12" for word in asked]
    assert "2 ranks of 4 samples by each of 12 workers take 96 a step on local:ranks=2" in fsbench(*many).err

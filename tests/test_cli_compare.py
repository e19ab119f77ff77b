"""`fsbench compare`: result sets on disk, or one line on why not."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest

from fsbench.results.store import ResultSet
from tests.fakes import cell, record, run_command, run_spec

CELLS = [cell(), cell(sharding="cost-aware")]


@pytest.fixture
def fsbench(capsys: pytest.CaptureFixture[str]):
    return partial(run_command, capsys)


@pytest.fixture
def results(tmp_path: Path):
    """Makes a result set: `results(name, pace)`; returns its folder as text."""

    def make(name: str, pace: float = 1.0, **changes) -> str:
        manifest = {
            "versions": {"fsbench": "0.1.0", "python": "3.11.9", "torch": "2.13.0"},
            "cpu": {"model": "Abacus 9", "cores": 2, "memory_mib": 8000},
            "settings": {"steps": None},
            "seeds": [1],
            "cells": [asdict(of) for of in CELLS],
            "data": {"ml-100k": {"data_sha256": "ab" * 32}},
        }
        made = ResultSet.create(tmp_path / name, {**manifest, **changes})
        for repeat in range(1, 7):
            for place, of in enumerate(CELLS):
                speed = pace * (1.25 if place else 1.0) * (1 + 0.001 * (repeat * (3 + place) % 7))
                made.append(record(run_spec(repeat, **asdict(of)), samples_per_s=1000 * speed))
        return str(made.folder)

    return make


def test_two_sets_of_one_machine_are_compared_cell_by_cell(fsbench, results):
    outcome = fsbench("compare", results("old"), results("new", pace=0.9))
    assert (outcome.exit_code, outcome.err) == (0, "")
    assert outcome.out.count("SLOWER") >= 2
    assert "B / A" in outcome.out


def test_the_runs_file_will_do(fsbench, results):
    old, new = results("old"), results("new")
    by_file = fsbench("compare", f"{old}/runs.jsonl", f"{new}/runs.jsonl")
    assert by_file.out.replace("/runs.jsonl", "") == fsbench("compare", old, new).out


@pytest.mark.parametrize("form", ["table", "markdown", "csv", "json"])
def test_each_format_has_the_ratio(fsbench, results, form: str):
    outcome = fsbench("compare", results("old"), results("new", pace=2.0), "--format", form)
    assert outcome.exit_code == 0
    if form == "json":
        assert json.loads(outcome.out)["cells"][0]["ratio"] == pytest.approx(2.0)
    else:
        assert {"table": "2.000 (", "markdown": "| 2.000 (", "csv": ",cpu,"}[form] in outcome.out


def test_sets_that_do_not_compare_are_no_error_and_the_report_says_why(fsbench, results):
    other = results("other", data={"ml-100k": {"data_sha256": "cd" * 32}})
    outcome = fsbench("compare", results("old"), other)
    assert outcome.exit_code == 0
    assert "not at all; data data_sha256: abababababab in A, cdcdcdcdcdcd in B" in outcome.out


@pytest.mark.parametrize("number", [0, 1])
def test_fewer_than_two_sets_are_refused(fsbench, results, number: int):
    outcome = fsbench("compare", *[results("old")][:number])
    assert (outcome.exit_code, outcome.out) == (2, "")
    assert f"compare takes 2 to 26 result sets, not {number}; `fsbench show RESULT` shows one" in outcome.err


def test_a_folder_that_is_no_result_set_is_refused(fsbench, results, tmp_path: Path):
    outcome = fsbench("compare", results("old"), str(tmp_path))
    assert outcome.exit_code == 2
    assert f"{tmp_path} is no result set: expected a folder with runs.jsonl in it" in outcome.err


@pytest.mark.parametrize("spelling", ["{}", "{}/runs.jsonl", "{}/../link"])
def test_the_same_set_twice_is_refused_however_it_is_spelled(fsbench, results, tmp_path: Path, spelling: str):
    old = results("old")
    (tmp_path / "link").symlink_to(old)
    outcome = fsbench("compare", old, spelling.format(old))
    assert outcome.exit_code == 2
    assert f"{spelling.format(old)} and {old} are the same result set" in outcome.err


def test_sets_without_a_common_cell_are_refused_in_one_line(fsbench, results, tmp_path: Path):
    other = ResultSet.create(tmp_path / "other", {})
    other.append(record(run_spec(workload="sparse")))
    outcome = fsbench("compare", results("old"), str(other.folder))
    assert (outcome.exit_code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert "no cell in common" in outcome.err


def test_a_set_without_a_run_is_refused(fsbench, results, tmp_path: Path):
    empty = ResultSet.create(tmp_path / "empty", {})
    outcome = fsbench("compare", results("old"), str(empty.folder))
    assert outcome.exit_code == 2
    assert f"{empty.folder} has no run that is ok" in outcome.err


def test_what_cannot_be_read_of_a_set_is_named_the_rest_is_compared_and_the_exit_code_is_1(fsbench, results):
    old, new = results("old"), results("new", pace=2.0)
    whole = fsbench("compare", old, new)
    with open(Path(new, "runs.jsonl"), "ab") as file:
        file.write(b"\x00\xff\n")
    outcome = fsbench("compare", old, new)
    assert (outcome.exit_code, outcome.out) == (1, whole.out)
    assert outcome.err == f"fsbench: warning: {new}/runs.jsonl:13: left out: not UTF-8 at byte 2\n"


def test_a_set_without_a_manifest_compares_with_nothing_cell_by_cell_and_says_why(fsbench, results):
    old, new = results("old"), results("new")
    Path(new, "manifest.json").write_text("{")
    outcome = fsbench("compare", old, new)
    assert outcome.exit_code == 1
    assert "manifest.json: left out: not JSON" in outcome.err
    assert "not recorded in B" in outcome.out
    assert "B / A" not in outcome.out


def test_it_imports_neither_torch_nor_numpy_nor_scipy(results):
    code = """
import sys
from fsbench.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    print("loaded:", sorted({"torch", "numpy", "scipy"} & set(sys.modules)))
"""
    command = [sys.executable, "-c", code, "compare", results("old"), results("new")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "SAME" in done.stdout
    assert done.stdout.splitlines()[-1] == "loaded: []"

"""`fsbench show`: a stored result set as a table, or one line on why not."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from fsbench.results.store import ResultSet
from fsbench.results.table import render
from tests.fakes import Outcome, record, run_command, run_spec

MANIFEST = {"schema": 1, "runs": ["naive-allreduce-r1", "naive-allreduce-r2"]}


@pytest.fixture
def fsbench(capsys: pytest.CaptureFixture[str]):
    return partial(run_command, capsys)


@pytest.fixture
def results(tmp_path: Path) -> ResultSet:
    results = ResultSet.create(tmp_path / "set", MANIFEST)
    results.append(record())
    return results


@pytest.mark.parametrize("form", ["table", "markdown", "csv", "json"])
def test_a_result_set_is_shown_in_each_format(fsbench, results: ResultSet, form: str):
    expected = render([record()], form, MANIFEST) + "\n"
    assert fsbench("show", str(results.folder), "--format", form) == Outcome(0, expected, "")


def test_its_runs_file_will_do(fsbench, results: ResultSet):
    assert fsbench("show", str(results.folder / "runs.jsonl")) == fsbench("show", str(results.folder))


def test_a_set_that_is_not_finished_says_so(fsbench, results: ResultSet):
    assert fsbench("show", str(results.folder)).out.startswith("1 cell, 1 of 2 runs, ")


def test_a_torn_last_line_is_a_warning(fsbench, results: ResultSet):
    with open(results.folder / "runs.jsonl", "a") as file:
        file.write('{"torn')
    outcome = fsbench("show", str(results.folder))
    assert outcome.exit_code == 0
    assert outcome.err == f"fsbench: warning: {results.folder}/runs.jsonl:2: dropped a torn last line\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no recorded run yet"),
        ("{}\n", "runs.jsonl:1: schema None"),
        ("nonsense\n" + json.dumps(record(run_spec())) + "\n", "runs.jsonl:1: "),
        ("\xff\n\n", "runs.jsonl:1: "),
    ],
)
def test_a_file_that_cannot_be_shown_is_one_line(fsbench, results: ResultSet, content: str, message: str):
    (results.folder / "runs.jsonl").write_text(content, encoding="latin-1")
    outcome = fsbench("show", str(results.folder))
    assert (outcome.exit_code, outcome.out) == (2, "")
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("place", ["", "nowhere", "set/manifest.json"])
def test_what_is_no_result_set_is_refused(fsbench, results: ResultSet, tmp_path: Path, place: str):
    outcome = fsbench("show", str(tmp_path / place))
    assert outcome.exit_code == 2
    assert "is no result set" in outcome.err


def test_an_unknown_format_is_refused_with_the_valid_ones(fsbench, results: ResultSet):
    outcome = fsbench("show", str(results.folder), "--format", "yaml")
    assert outcome.exit_code == 2
    assert all(form in outcome.err for form in ("table", "json", "csv", "markdown"))

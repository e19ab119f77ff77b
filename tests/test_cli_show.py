"""`fsbench show`: a stored result set as a table, or one line on why not."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from fsbench.results.store import ResultSet
from fsbench.results.table import render
from tests.fakes import Outcome, record, run_command

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


DAMAGE = [
    (b'{"torn', "runs.jsonl:2: left out: torn, not JSON: "),
    (b"nonsense\n", "runs.jsonl:2: left out: not JSON: "),
    (b"\xff\x1b[2J\n", "runs.jsonl:2: left out: not UTF-8 at byte 1"),
    (b'{"schema": 2, "run_id": "a"}\n', "runs.jsonl:2: left out: schema 2; this version of fsbench reads 1"),
]


@pytest.mark.parametrize("form", ["table", "markdown", "csv", "json"])
@pytest.mark.parametrize(("tail", "named"), DAMAGE)
def test_what_cannot_be_read_is_named_the_rest_is_shown_and_the_exit_code_is_1(
    fsbench, results: ResultSet, tail: bytes, named: str, form: str
):
    whole = fsbench("show", str(results.folder), "--format", form)
    with open(results.folder / "runs.jsonl", "ab") as file:
        file.write(tail)
    outcome = fsbench("show", str(results.folder), "--format", form)
    assert (outcome.exit_code, outcome.out) == (1, whole.out)
    assert outcome.err.startswith(f"fsbench: warning: {results.folder}/{named}")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("content", [None, b"[", b"[]", b'{"schema": 2}'])
def test_without_a_readable_manifest_the_runs_are_shown_and_what_is_missing_is_named(
    fsbench, results: ResultSet, content: bytes | None
):
    manifest = results.folder / "manifest.json"
    manifest.unlink() if content is None else manifest.write_bytes(content)
    outcome = fsbench("show", str(results.folder))
    assert outcome.exit_code == 1
    assert outcome.out.startswith("1 cell, 1 run, ")
    assert outcome.err.startswith(f"fsbench: warning: {manifest}: left out: ")
    assert outcome.err.endswith("the order of the cells, the planned runs and the provenance are not known\n")


@pytest.mark.parametrize(
    ("content", "messages"),
    [
        ("", ["holds no recorded run yet"]),
        ("{}\n", ["runs.jsonl:1: left out: schema None", "holds no run that can be read"]),
        ("\xff\n\n", ["runs.jsonl:1: left out: not UTF-8", "holds no run that can be read"]),
    ],
)
def test_where_there_is_nothing_to_show_it_says_so(fsbench, results: ResultSet, content: str, messages: list[str]):
    (results.folder / "runs.jsonl").write_text(content, encoding="latin-1")
    outcome = fsbench("show", str(results.folder))
    assert (outcome.exit_code, outcome.out) == (2, "")
    for line, message in zip(outcome.err.splitlines(), messages, strict=True):
        assert message in line


def test_a_folder_with_a_name_that_steers_the_terminal_is_named_without_it(fsbench, tmp_path: Path):
    outcome = fsbench("show", str(tmp_path / "\x1b[2J\u202e"))
    assert "\\x1b[2J\\u202e is no result set" in outcome.err
    assert outcome.err.removesuffix("\n").isprintable()


@pytest.mark.parametrize("place", ["", "nowhere", "set/manifest.json"])
def test_what_is_no_result_set_is_refused(fsbench, results: ResultSet, tmp_path: Path, place: str):
    outcome = fsbench("show", str(tmp_path / place))
    assert outcome.exit_code == 2
    assert "is no result set" in outcome.err


def test_an_unknown_format_is_refused_with_the_valid_ones(fsbench, results: ResultSet):
    outcome = fsbench("show", str(results.folder), "--format", "yaml")
    assert outcome.exit_code == 2
    assert all(form in outcome.err for form in ("table", "json", "csv", "markdown"))

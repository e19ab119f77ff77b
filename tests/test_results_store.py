"""Result sets on disk: made, added to, resumed. What of a damaged one is shown is in `test_results_reading`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsbench.errors import UserError
from fsbench.results.store import ResultSet, default_folder
from tests.fakes import record, run_spec

FIRST, SECOND = record(run_spec(1)), record(run_spec(2))


@pytest.fixture
def results(tmp_path: Path) -> ResultSet:
    return ResultSet.create(tmp_path / "set", {"schema": 1})


def runs_file(results: ResultSet) -> Path:
    return results.folder / "runs.jsonl"


def test_a_result_set_is_a_manifest_and_one_line_a_run(results: ResultSet):
    results.append(FIRST)
    results.append(SECOND)
    assert json.loads((results.folder / "manifest.json").read_text()) == {"schema": 1}
    assert [json.loads(line) for line in runs_file(results).read_text().splitlines()] == [FIRST, SECOND]
    assert results.records() == [FIRST, SECOND]


def test_a_new_result_set_has_no_records(results: ResultSet):
    assert results.records() == []


def test_it_opens_by_its_folder_and_by_its_file(results: ResultSet):
    assert ResultSet.open(results.folder) == ResultSet.open(runs_file(results)) == results


def test_a_folder_without_runs_is_no_result_set(tmp_path: Path):
    with pytest.raises(UserError, match=r"is no result set: expected a folder with runs\.jsonl"):
        ResultSet.open(tmp_path)


def test_a_folder_that_holds_a_result_set_is_not_written_over(results: ResultSet):
    with pytest.raises(UserError, match="already holds a result set; add --resume"):
        ResultSet.create(results.folder, {})


def test_a_place_that_is_no_folder_is_refused_in_one_line(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write results to") as error:
        ResultSet.create(tmp_path / "file" / "set", {})
    assert "\n" not in str(error.value)


def test_nan_never_reaches_the_file(results: ResultSet):
    with pytest.raises(ValueError, match="not JSON compliant"):
        results.append({**FIRST, "wall_s": float("nan")})
    assert runs_file(results).read_bytes() == b""


def test_a_run_recorded_again_replaces_its_earlier_record(results: ResultSet):
    failed = record(run_spec(1), status="failed", reason="it fell over")
    for line in (failed, SECOND):
        results.append(line)
    assert results.finished() == {SECOND["run_id"]}
    results.append(FIRST)
    assert results.records() == [FIRST, SECOND]
    assert results.finished() == {FIRST["run_id"], SECOND["run_id"]}


@pytest.mark.parametrize("torn", ['{"schema": 1, "r', "\x00\x00", '{"schema": 1}{', '{"wall_s": NaN}', "[" * 100_000])
@pytest.mark.parametrize("end", ["", "\n"])
def test_an_unreadable_last_line_is_left_out_with_a_warning(results: ResultSet, torn: str, end: str):
    results.append(FIRST)
    with open(runs_file(results), "a") as file:
        file.write(torn + end)
    with pytest.warns(UserWarning, match=r"runs\.jsonl:2: left out: " + ("" if end else "torn, ")):
        assert results.records() == [FIRST]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("tail", ['{"torn', '{"torn\n', ""])
def test_resuming_mends_a_torn_end_before_the_next_record(results: ResultSet, tail: str):
    results.append(FIRST)
    with open(runs_file(results), "a") as file:
        file.write(tail)
    resumed = ResultSet.resume(results.folder, {"again": True})
    resumed.append(SECOND)
    assert resumed.records() == [FIRST, SECOND]


def test_resuming_keeps_a_last_record_that_lacks_only_its_line_end(results: ResultSet):
    runs_file(results).write_text(json.dumps(FIRST))
    resumed = ResultSet.resume(results.folder, {})
    resumed.append(SECOND)
    assert resumed.records() == [FIRST, SECOND]


def test_resuming_keeps_the_first_manifest_and_adds_its_own(results: ResultSet):
    ResultSet.resume(results.folder, {"n": 1})
    ResultSet.resume(results.folder, {"n": 2})
    assert results.read().manifest == {"schema": 1, "resumed": [{"n": 1}, {"n": 2}]}


def test_resuming_nothing_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="is no result set"):
        ResultSet.resume(tmp_path, {})


def test_default_folders_differ():
    assert len({default_folder() for _ in range(20)}) > 1
    assert default_folder().parent == Path("results")

"""Reading under damage: what is sound is returned, the rest is named by line and reason, and nothing is changed."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsbench.errors import DataError, UserError
from fsbench.results import reading
from fsbench.results.compare import Compared, compare
from fsbench.results.compare_data import comparison_csv, comparison_json
from fsbench.results.compare_table import comparison_report
from fsbench.results.printable import printable
from fsbench.results.record_shape import record_fault
from fsbench.results.store import Contents, ResultSet
from fsbench.results.table import FORMATS, render
from tests.damage import LATER, LINES, MANIFEST, RECORDS, json_values, with_a_part_replaced, write_set
from tests.fakes import record, run_spec

PUBLISHED = Path(__file__).parent.parent / "results"
WHOLE = b"".join(line + b"\n" for line in LINES)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def results(tmp_path: Path):
    """`results(line)`: a set whose second line is that."""

    def make(line: bytes) -> ResultSet:
        return write_set(tmp_path / "set", b"\n".join([LINES[0], line, *LINES[2:], b""]))

    return make


@pytest.mark.parametrize("name", ["runs.jsonl", "manifest.json"])
def test_a_link_is_not_followed(tmp_path: Path, name: str):
    results = write_set(tmp_path / "set", WHOLE)
    (results.folder / name).rename(tmp_path / "elsewhere")
    (results.folder / name).symlink_to(tmp_path / "elsewhere")
    fault = "a link, which is not followed"
    if name == "runs.jsonl":
        with pytest.raises(DataError, match=fault):
            results.read()
    else:
        assert any(fault in text for text in results.read().unread)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"nonsense", "not JSON: Expecting value at character 1"),
        (b'{"schema": 1, "run_', "not JSON: Unterminated string"),
        (b"\x89PNG\r\x1a\xff", "not UTF-8 at byte 1"),
        (b'{"schema": 1, "kind": "\xff"}', "not UTF-8 at byte 24"),
        (b"\x00" * 9, "not JSON: "),
        (b"7", "expected an object"),
        (b'["schema", 1]', "expected an object"),
        (b'{"schema": 1}', "'run_id' is missing or of the wrong type"),
        (LINES[1].replace(b"1600.0", b"NaN"), "NaN is no JSON number"),
        (LINES[1].replace(b"1600.0", b"-Infinity"), "-Infinity is no JSON number"),
        (LINES[1].replace(b"1600.0", b"1e999"), "a number is too large for a float"),
        (LINES[1].replace(b"1600.0", b"1e300"), "metric 'samples_per_s' is 1e+300"),
        (LINES[1].replace(b"1600.0", b"9" * 5000), "a whole number is too large: 5000 characters"),
        (LINES[1].replace(b"1600.0", b"true"), "metric 'samples_per_s' is True"),
        (LINES[1].replace(b'"schema": 1', b'"schema": 2'), "schema 2; this version of fsbench reads 1"),
        (LINES[1].replace(b'"schema": 1', b'"schema": true'), "schema True; this version of fsbench reads 1"),
        (LINES[1].replace(b'"schema": 1', b'"schema": {"a": 1}'), "schema {'a': 1}; this version"),
        (LINES[1].replace(b'"observed": {}', b'"observed": [{}]'), "'observed' is missing or of the wrong type"),
        (
            LINES[1].replace(b'"per_rank": []', b'"per_rank": ' + b"[" * 90 + b"]" * 90),
            "nested too deeply: more than 64",
        ),
        (b"[" * 100_000, "nested too deeply: more than 64 levels"),
        (
            LINES[1].replace(b"cost-aware-allreduce-r1", b"../../etc/passwd"),
            "'run_id' is '../../etc/passwd', which is",
        ),
        (
            LINES[1].replace(b"cost-aware-allreduce-r1", b"a\\u0000b"),
            "'run_id' is 'a\\x00b', which is no name",
        ),
        (LINES[1].replace(b'"ml-100k"', b'"../ml"'), "'cell' has the workload '../ml', which is no NAME:OPTIONS"),
        (LINES[1].replace(b'"ml-100k"', b'"ml:a=\\u001b[2J"'), "'cell' has the workload 'ml:a=\\x1b[2J', which is no"),
        (LINES[1].replace(b'"ml-100k"', b'"ml:a=' + b"x" * 5000 + b'"'), "'cell' has the workload 'ml:a=xxxxx"),
        (
            LINES[1].replace(b'"loss": "not looked at in this test"', b'"loss": ["x"]'),
            "the reason why 'loss' is miss",
        ),
    ],
)
def test_a_line_that_is_no_record_is_named_and_the_others_are_shown(results, line: bytes, why: str):
    made = results(line)
    contents = made.read()
    assert contents.records == [RECORDS[0], *RECORDS[2:]]
    assert len(contents.unread) == 1
    assert contents.unread[0].startswith(f"{made.folder}/runs.jsonl:2: left out: {why}")
    assert len(contents.unread[0]) < 400


def test_an_enormous_line_is_left_out_without_being_read_whole(results, monkeypatch):
    monkeypatch.setattr(reading, "LONGEST_LINE", 2**14)
    monkeypatch.setattr(reading, "_CHUNK", 2**10)
    made = results(b'{"schema": 1, "run_id": "' + b"x" * 2**20)
    assert made.read().records == [RECORDS[0], *RECORDS[2:]]
    with open(made.folder / "runs.jsonl", "rb") as file:
        longest = max(len(line.content or b"") for line in reading.lines_of(file))
    assert longest < 2**14
    with pytest.warns(UserWarning, match=r"runs\.jsonl:2: left out: longer than 0 MiB"):
        made.records()


def test_an_empty_line_says_nothing_and_is_no_damage(results):
    contents = results(b"").read()
    assert (contents.records, contents.unread) == ([RECORDS[0], *RECORDS[2:]], [])


def test_a_last_line_that_lacks_only_its_end_is_a_record(tmp_path):
    contents = write_set(tmp_path / "set", WHOLE.removesuffix(b"\n")).read()
    assert (contents.records, contents.unread) == (RECORDS, [])


@pytest.mark.parametrize(
    "folder", sorted(path.parent for path in PUBLISHED.glob("*/runs.jsonl")), ids=lambda of: of.name
)
def test_the_published_sets_are_read_whole(folder: Path):
    contents = ResultSet.open(folder).read()
    assert contents.records
    assert contents.unread == []


def test_a_torn_last_line_is_called_torn(tmp_path):
    made = write_set(tmp_path / "set", WHOLE + LINES[0][:100])
    contents = made.read()
    assert contents.records == RECORDS
    (told,) = contents.unread
    assert told.startswith(f"{made.folder}/runs.jsonl:5: left out: torn, not JSON: ")


def test_a_run_that_was_ok_and_is_recorded_again_is_named_because_fsbench_never_does_that(tmp_path):
    again = {**RECORDS[0], "wall_s": 9.0}
    contents = write_set(tmp_path / "set", WHOLE + json.dumps(again).encode() + b"\n").read()
    assert contents.records == [again, *RECORDS[1:]]
    assert contents.unread == [f"{tmp_path}/set/runs.jsonl:1: left out: its run was ok and is recorded again in line 5"]


def test_a_run_that_was_not_ok_and_is_recorded_again_is_no_damage(tmp_path):
    better = record(run_spec(2, sharding="cost-aware"))
    contents = write_set(tmp_path / "set", WHOLE + json.dumps(better).encode() + b"\n").read()
    assert (contents.records[3], contents.unread) == (better, [])


def test_of_very_many_unreadable_lines_the_first_are_named_and_the_others_counted(tmp_path):
    made = write_set(tmp_path / "set", b"x\n" * 1000 + WHOLE)
    with pytest.warns(UserWarning, match="left out: ") as warned:
        assert made.records() == RECORDS
    assert len(warned) == 21
    assert "980 more, the last of them" in str(warned[-1].message)
    assert "runs.jsonl:1000: " in str(warned[-1].message)


def test_a_file_that_cannot_be_opened_is_the_one_error_there_is(tmp_path, monkeypatch):
    made = write_set(tmp_path / "set", WHOLE)
    (made.folder / "runs.jsonl").unlink()
    with pytest.raises(DataError, match=r"runs\.jsonl: No such file"):
        made.records()


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        (None, "missing; the order of the cells, the planned runs and the provenance are not known"),
        (b"", "not JSON: Expecting value at character 1; the order of the cells"),
        (b'{"schema": 1, "cells": [', "not JSON: "),
        (b"\xff\xfe", "not UTF-8 at byte 1; "),
        (b"[]", "expected an object; "),
        (b'{"schema": 2, "cells": []}', "schema 2; this version of fsbench reads 1; the order of the cells"),
        (b'{"seeds": [1e999]}', "a number is too large for a float; "),
        (b'{"data": ' + b'{"a": ' * 90 + b"1" + b"}" * 91, "nested too deeply: more than 64 levels; "),
        (b"[" * 3000, "nested too deeply: more than 64 levels; "),
        (b" " * 5000, "larger than 0 MiB; "),
    ],
)
def test_without_a_manifest_the_runs_are_shown_and_what_is_not_known_is_said(tmp_path, monkeypatch, manifest, why):
    monkeypatch.setattr(reading, "LARGEST_MANIFEST", 4000)
    made = write_set(tmp_path / "set", WHOLE, manifest or b"")
    if manifest is None:
        (made.folder / "manifest.json").unlink()
    contents = made.read()
    assert (contents.records, contents.manifest) == (RECORDS, {})
    assert contents.unread[0].startswith(f"{made.folder}/manifest.json: left out: {why}")


def test_a_manifest_that_is_no_file_is_not_waited_for(tmp_path):
    made = write_set(tmp_path / "set", WHOLE)
    (made.folder / "manifest.json").unlink()
    (made.folder / "manifest.json").mkdir()
    assert made.read().unread[0].startswith(f"{made.folder}/manifest.json: left out: not a file; ")


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("cells", [{"workload": "ml-100k"}]),
        ("cells", [{**RECORDS[0]["cell"], "sync": "../x"}]),
        ("runs", [["a"]]),
        ("plugins", [{"kind": "sharding"}]),
        ("environment", {"OMP_NUM_THREADS": 1}),
        ("cpu", {"memory_mib": "much"}),
        ("gpus", ["H200"]),
        ("git", {"commit": 7}),
        ("versions", {"torch": []}),
        ("settings", 3),
        ("data", []),
        ("resumed", {}),
        ("resumed", [7]),
    ],
)
def test_a_part_of_a_manifest_that_is_not_what_it_should_be_costs_that_part_alone(tmp_path, part: str, value: Any):
    made = write_set(tmp_path / "set", WHOLE, json.dumps({**MANIFEST, part: value}).encode())
    contents = made.read()
    assert contents.unread == [f"{made.folder}/manifest.json: left out: '{part}' is not what it should be"]
    assert contents.manifest == {key: value for key, value in MANIFEST.items() if key != part}


def test_a_wrong_part_of_what_resumed_the_set_is_named_with_its_place(tmp_path):
    resumed = [MANIFEST["resumed"][0], {"cells": 3}, {"schema": 2}]
    made = write_set(tmp_path / "set", WHOLE, json.dumps({**MANIFEST, "resumed": resumed}).encode())
    contents = made.read()
    assert [text.partition("left out: ")[2] for text in contents.unread] == [
        "resumed 2: 'cells' is not what it should be",
        "resumed 3: schema 2; this version of fsbench reads 1",
    ]
    assert contents.manifest["resumed"] == [MANIFEST["resumed"][0], {}, {}]


# Properties: whatever happened to the file.


def check_survives(damaged: bytes, intact: set[int]) -> None:
    """What holds of every damage. `intact`: the lines of the original, from 0, that it did not touch."""
    with tempfile.TemporaryDirectory() as name:
        made = write_set(Path(name, "set"), damaged)
        contents = made.read()
        assert (made.folder / "runs.jsonl").read_bytes() == damaged
        assert all(record_fault(one) is None for one in contents.records)
        check_each_line_is_shown_or_named(damaged, contents)
        shown = {one["run_id"]: one for one in contents.records}
        # One byte may turn a run's name into that of another, whose record it then replaces.
        others = [one for one in contents.records if one not in RECORDS]
        for whole in (RECORDS[place] for place in intact):
            assert shown[whole["run_id"]] in (whole, *others)
        check_resumes(made, damaged, contents.records)


def check_each_line_is_shown_or_named(damaged: bytes, contents: Contents) -> None:
    named = {int(text.split("runs.jsonl:")[1].split(":")[0]) for text in contents.unread}
    shown = {one["run_id"] for one in contents.records}
    for number, line in enumerate(damaged.split(b"\n"), start=1):
        assert not line or number in named or json.loads(line)["run_id"] in shown


def check_resumes(made: ResultSet, damaged: bytes, readable: list) -> None:
    """Resuming keeps every record and every byte that cannot be read, and what is recorded then is readable."""
    ResultSet.resume(made.folder, {"schema": 1}).append(LATER)
    aside = made.folder / "runs.jsonl.damaged"
    torn = aside.read_bytes().removesuffix(b"\n") if aside.exists() else b""
    kept = damaged.removesuffix(torn)
    assert kept + torn == damaged
    line_end = b"\n" if kept and not kept.endswith(b"\n") else b""
    later = json.dumps(LATER, ensure_ascii=False).encode() + b"\n"
    assert (made.folder / "runs.jsonl").read_bytes() == kept + line_end + later
    assert made.records() == [*readable, LATER]


@given(st.integers(0, len(WHOLE)))
def test_a_file_cut_at_any_byte_loses_no_record_that_is_whole(end: int):
    damaged = WHOLE[:end]
    check_survives(damaged, {place for place in range(4) if len(b"\n".join(LINES[: place + 1])) <= end})


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_any_byte_flipped_costs_no_more_than_the_lines_it_joins(place: int, mask: int):
    damaged = WHOLE[:place] + bytes([WHOLE[place] ^ mask]) + WHOLE[place + 1 :]
    line = WHOLE[:place].count(b"\n")
    touched = {line, line + 1} if WHOLE[place : place + 1] == b"\n" else {line}
    check_survives(damaged, set(range(4)) - touched)


@given(st.integers(0, 3), st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_line_replaced_by_anything_costs_that_line_alone(place: int, line: bytes):
    damaged = b"".join(one + b"\n" for one in [*LINES[:place], line, *LINES[place + 1 :]])
    check_survives(damaged, set(range(4)) - {place})


@given(st.integers(0, 3), st.data())
def test_a_record_of_another_shape_costs_that_line_alone(place: int, data: st.DataObject):
    line = json.dumps(data.draw(with_a_part_replaced(RECORDS[place]))).encode()
    damaged = b"".join(one + b"\n" for one in [*LINES[:place], line, *LINES[place + 1 :]])
    check_survives(damaged, set(range(4)) - {place})


def check_shown(made: ResultSet) -> None:
    """Every report can be made, or says in one line why not."""
    contents = made.read()
    for form in FORMATS:
        assert render(contents.records, form, contents.manifest)
        sets = [
            Compared(letter, letter, printable(manifest, form), printable(records, form))
            for letter, records, manifest in (("A", RECORDS, MANIFEST), ("B", contents.records, contents.manifest))
        ]
        # Sets without a common cell are refused.
        with contextlib.suppress(UserError):
            for comparison in (compare(sets), compare(sets[::-1])):
                writers = {"json": comparison_json, "csv": comparison_csv}
                assert writers[form](comparison) if form in writers else comparison_report(comparison, form)


@settings(max_examples=60)
@given(st.data())
def test_every_report_can_be_made_of_what_is_read(data: st.DataObject):
    records = data.draw(with_a_part_replaced(RECORDS)) if data.draw(st.booleans()) else RECORDS
    manifest = data.draw(with_a_part_replaced(MANIFEST))
    lines = records if isinstance(records, list) else [records]
    runs = b"".join(json.dumps(one).encode() + b"\n" for one in [*lines, LATER])
    with tempfile.TemporaryDirectory() as name:
        check_shown(write_set(Path(name, "set"), runs, json.dumps(manifest).encode()))


@settings(max_examples=40)
@given(st.integers(0, 4000), st.integers(1, 255))
def test_every_report_can_be_made_with_a_manifest_that_has_a_byte_flipped_or_is_cut(place: int, mask: int):
    whole = json.dumps(MANIFEST).encode()
    place %= len(whole)
    cut = whole[:place]
    with tempfile.TemporaryDirectory() as name:
        check_shown(write_set(Path(name, "cut"), WHOLE, cut))
        check_shown(write_set(Path(name, "flipped"), WHOLE, cut + bytes([whole[place] ^ mask]) + whole[place + 1 :]))

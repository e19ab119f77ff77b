"""Writing: whole lines, whole files, and never through a link out of the folder."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from fsbench.errors import FsbenchError, UserError
from fsbench.results.store import ResultSet, held
from tests.damage import LATER, LINES, RECORDS, write_set

pytestmark = pytest.mark.filterwarnings("ignore:.*left out")
WHOLE = b"".join(line + b"\n" for line in LINES)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize(
    "place", ["runs.jsonl", "runs.jsonl.damaged", "manifest.json", "manifest.json.new", "logs", "logs/run-1.txt"]
)
def test_nothing_is_written_through_a_link(tmp_path: Path, place: str):
    outside = tmp_path / "outside"
    if place == "logs":
        outside.mkdir()
    else:
        outside.write_bytes(WHOLE)
    made = write_set(tmp_path / "set", WHOLE + b"{torn")
    link = made.folder / place
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(outside)
    with pytest.raises(UserError) as error, held(made.folder):
        ResultSet.resume(made.folder, {}).append(LATER)
    assert str(error.value) == f"{link} is a link or a special file; nothing is written through it"
    assert outside.is_dir() or outside.read_bytes() == WHOLE


def test_a_link_that_leads_nowhere_is_not_followed_either(tmp_path: Path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "runs.jsonl").symlink_to(tmp_path / "made")
    with pytest.raises(UserError, match="is a link or a special file"), held(tmp_path / "set"):
        pass
    assert not (tmp_path / "made").exists()


def test_a_pipe_is_not_waited_for(tmp_path: Path):
    made = write_set(tmp_path / "set", WHOLE + b"{torn")
    os.mkfifo(made.folder / "runs.jsonl.damaged")
    with pytest.raises(UserError, match=r"runs\.jsonl\.damaged is a link or a special file"), held(made.folder):
        ResultSet.resume(made.folder, {})


def test_a_set_that_lies_behind_a_link_which_the_user_named_is_written(tmp_path: Path):
    made = write_set(tmp_path / "set", WHOLE)
    (tmp_path / "link").symlink_to(made.folder)
    with held(tmp_path / "link"):
        ResultSet.resume(tmp_path / "link", {}).append(LATER)
    assert made.records() == [*RECORDS, LATER]


def test_a_folder_with_a_manifest_of_something_else_is_left_alone(tmp_path: Path):
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match=r"has a manifest\.json and no runs\.jsonl"), held(tmp_path):
        pass
    assert os.listdir(tmp_path) == ["manifest.json"]


def test_a_set_that_was_only_just_begun_can_be_begun_again_and_resumed(tmp_path: Path):
    for again in (ResultSet.create, ResultSet.resume):
        folder = tmp_path / again.__name__
        with held(folder):
            pass  # killed after the lock was taken, before the manifest was written
        again(folder, {"schema": 1}).append(LATER)
        contents = ResultSet.open(folder).read()
        assert (contents.records, contents.manifest, contents.unread) == ([LATER], {"schema": 1}, [])


@pytest.mark.parametrize("manifest", [b"{torn", b'{"schema": 2}', b'{"cells": 3}', b'{"resumed": [{"schema": 2}]}'])
def test_a_set_whose_manifest_cannot_be_relied_on_is_not_resumed_and_not_touched(tmp_path: Path, manifest: bytes):
    made = write_set(tmp_path / "set", WHOLE + b"{torn", manifest)
    before = content(made.folder)
    with pytest.raises(UserError, match=r"manifest\.json: left out: .*whether more runs would compare"):
        ResultSet.resume(made.folder, {"schema": 1})
    assert content(made.folder) == before


def test_a_torn_line_goes_beside_and_a_second_one_joins_it(tmp_path: Path):
    made = write_set(tmp_path / "set", WHOLE + b"{torn")
    with pytest.warns(UserWarning, match=r"runs\.jsonl:5: a torn last line was moved to runs\.jsonl\.damaged"):
        ResultSet.resume(made.folder, {"schema": 1})
    with open(made.folder / "runs.jsonl", "ab") as file:
        file.write(b"\x00\x00")
    with pytest.warns(UserWarning, match=r"runs\.jsonl:5: a torn last line was moved"):
        ResultSet.resume(made.folder, {"schema": 1})
    assert (made.folder / "runs.jsonl.damaged").read_bytes() == b"{torn\n\x00\x00\n"
    assert (made.folder / "runs.jsonl").read_bytes() == WHOLE
    assert made.read().unread == []


def test_a_manifest_is_the_old_one_or_the_new_one_whenever_writing_it_stops(tmp_path: Path, monkeypatch):
    made = write_set(tmp_path / "set", WHOLE)
    before = made.read().manifest

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        ResultSet.resume(made.folder, {"schema": 1})
    assert made.read().manifest == before


def test_a_manifest_that_could_not_be_read_again_is_not_written(tmp_path: Path, monkeypatch):
    made = write_set(tmp_path / "set", WHOLE)
    before = content(made.folder)
    monkeypatch.setattr("fsbench.results.store.LARGEST_MANIFEST", 6000)
    with pytest.raises(UserError, match="its manifest would be larger than can be read; name another --out"):
        ResultSet.resume(made.folder, {"command": ["x" * 6000]})
    assert content(made.folder) == before


def test_a_line_is_one_call_to_the_kernel(tmp_path: Path, monkeypatch):
    made, calls = write_set(tmp_path / "set", WHOLE), []
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, text: calls.append(text) or write(descriptor, text))
    made.append(LATER)
    assert [text.count(b"\n") for text in calls] == [1]


def test_a_line_that_another_process_adds_just_before_stays(tmp_path: Path, monkeypatch):
    made = write_set(tmp_path / "set", WHOLE)
    write = os.write

    def write_second(descriptor: int, text: bytes) -> int:
        with open(made.folder / "runs.jsonl", "ab") as other:
            other.write(b"other\n")
        return write(descriptor, text)

    monkeypatch.setattr(os, "write", write_second)
    made.append(LATER)
    assert made.records() == [*RECORDS, LATER]
    assert (made.folder / "runs.jsonl").read_bytes().startswith(WHOLE + b"other\n")


def test_a_line_for_which_the_disk_had_no_room_does_not_spoil_the_next(tmp_path: Path):
    made = write_set(tmp_path / "set", WHOLE)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(WHOLE) + 100, limits[1]))
    try:
        with pytest.raises(FsbenchError, match=r"cannot write results to .*: File too large"):
            made.append(LATER)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    made.append(LATER)
    contents = made.read()
    assert contents.records == [*RECORDS, LATER]
    assert [text.split(": ")[0] for text in contents.unread] == [f"{made.folder}/runs.jsonl:5"]


def test_half_a_surrogate_pair_in_a_record_is_written_as_an_escape(tmp_path: Path):
    made = ResultSet.create(tmp_path / "set", {"schema": 1})
    made.append({**LATER, "status": "failed", "reason": "no such file: \udcff"})
    assert made.records()[0]["reason"] == "no such file: \udcff"

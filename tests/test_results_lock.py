"""One writer a result set, and whole lines whoever writes: with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsbench.errors import UserError
from fsbench.results.store import ResultSet, held
from tests.fakes import record, run_spec

pytestmark = pytest.mark.timeout(20)
HOLDER = """
import subprocess, sys
from pathlib import Path
from fsbench.results.store import held

with held(Path(sys.argv[1])):
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], close_fds=False)
    print("held", child.pid, flush=True)
    sys.stdin.read()
"""
WRITER = """
import sys
from pathlib import Path
from fsbench.results.store import ResultSet

who, results = sys.argv[2], ResultSet.open(Path(sys.argv[1]))
sys.stdin.read(1)
for number in range(60):
    results.append({"who": who, "number": number, "text": who * (number * 977)})
"""


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that writes to `tmp_path / "set"`; its child outlives it, as a rank may for a moment."""
    process = start(HOLDER, str(tmp_path / "set"))
    assert process.stdout.readline().startswith("held")
    yield process
    process.communicate(timeout=20)


def test_a_second_writer_is_refused_and_told_who_the_first_is(tmp_path: Path, holder):
    with pytest.raises(UserError) as error, held(tmp_path / "set"):
        pass
    assert str(error.value) == (
        f"{tmp_path}/set is being written by process {holder.pid}; wait for it, end it, or name another --out"
    )


def test_a_writer_that_is_killed_holds_nothing_although_its_child_lives(tmp_path: Path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait(timeout=20)
    with held(tmp_path / "set"):
        assert os.listdir(tmp_path / "set") == ["runs.jsonl"]


def test_a_writer_that_has_ended_holds_nothing_and_the_lock_leaves_no_file(tmp_path: Path):
    for _ in range(2):
        with held(tmp_path / "set"):
            pass
    assert os.listdir(tmp_path / "set") == ["runs.jsonl"]


def test_where_the_kernel_does_not_list_locks_there_is_still_another_process(tmp_path: Path, holder, monkeypatch):
    monkeypatch.setattr("fsbench.results.lock._LOCKS", tmp_path / "nowhere")
    with pytest.raises(UserError, match="is being written by another process; wait"), held(tmp_path / "set"):
        pass


def test_a_reader_needs_no_lock(tmp_path: Path, holder):
    results = ResultSet.open(tmp_path / "set")
    results.append(record(run_spec(1)))
    assert results.records() == [record(run_spec(1))]


def test_lines_that_two_processes_append_at_once_stay_whole(tmp_path: Path):
    results = ResultSet.create(tmp_path / "set", {})
    writers = [start(WRITER, str(results.folder), who) for who in "ab"]
    for writer in writers:
        writer.stdin.write("go")
        writer.stdin.flush()
    assert [writer.communicate(timeout=30) and writer.returncode for writer in writers] == [0, 0]
    # Who looks while another's line is half written ends it first: an empty line, which readers skip.
    lines = [json.loads(line) for line in (results.folder / "runs.jsonl").read_text().splitlines() if line]
    assert {line["who"] for line in lines} == {"a", "b"}
    for who in "ab":
        assert [line["number"] for line in lines if line["who"] == who] == list(range(60))
    assert all(line["text"] == line["who"] * (line["number"] * 977) for line in lines)

"""A disk that fills up while runs write to it: results, temporary files, logs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fsbench.launch.handover import RankError, make_room, read_errors, write_error
from fsbench.launch.interrupts import Interrupts
from fsbench.launch.keep import MOST_BYTES, keep_log, tail
from fsbench.launch.session import Execution
from tests import fakes, faulty, sessions

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a file system of a few pages needs root to mount it")
environment = sessions.environment


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@needs_root
@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(120)
class TestSessions:
    def test_results_that_find_no_room_end_the_session_and_resume_runs_what_is_missing(
        self, small_disk, tmp_path, environment
    ):
        out = small_disk / "set"
        cells = ("--sync", "allreduce", "--sync", "none", "--on", "toy", "--steps", "4", "--quiet")
        fault = {"TOY_FAULTS": json.dumps({"naive+plain+backend+none": ("fill", 1)}), "TOY_DISK": str(small_disk)}
        done = sessions.run(out, {**environment, **fault}, *cells)
        assert done.returncode == 1
        assert done.stderr == f"fsbench: error: cannot write results to {out}: No space left on device\n"
        assert sessions.left(environment) == []
        (small_disk / "filler").unlink()
        resumed = sessions.run(out, environment, *cells, "--resume")
        assert resumed.returncode == 0, resumed.stderr
        assert {record["cell"]["sync"]: record["status"] for record in sessions.all_records(out)} == {
            "allreduce": "ok",
            "none": "ok",
        }

    def test_ranks_that_find_no_room_say_so_and_the_next_run_finds_it_again(self, small_disk, tmp_path, environment):
        pytest.importorskip("torch")
        here = {**environment, "TMPDIR": str(small_disk)}
        cells = ("--sharding", "naive", "--sharding", "faulty:how=fill", "--on", "bare", "--steps", "6", "--quiet")
        done = sessions.run(tmp_path / "set", here, *cells)
        assert done.returncode == 1, done.stderr
        found = sessions.records(tmp_path / "set")
        assert found["naive"]["status"] == "ok"
        reason = "rank 0, report: OSError: [Errno 28] No space left on device (log: "
        assert found["faulty:how=fill"]["reason"].startswith(reason)
        assert sessions.left(here) == []


@needs_root
def test_a_run_that_finds_no_room_to_start_fails_alone(small_disk, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    faulty.fill(small_disk)
    run = fakes.run_spec(cluster="local:ranks=2", workload=sessions.TINY)
    record = Execution(run, None, tmp_path, lambda beats: None, Interrupts()).record()
    assert (record["status"], record["reason"]) == ("failed", "could not be run: No space left on device")


@needs_root
def test_a_rank_has_room_for_its_last_words_before_the_disk_is_full(small_disk):
    make_room(small_disk, 1)
    faulty.fill(small_disk)
    error = RankError(1, "failed", "é" * 9999, "train 3/6", 17)
    write_error(small_disk, error)
    (told,) = read_errors(small_disk)
    assert (told.rank, told.kind, told.phase, told.time_ns) == (1, "failed", "train 3/6", 17)
    assert told.message == "é" * len(told.message) != ""


@needs_root
def test_a_heartbeat_without_room_is_an_error_and_no_crash_at_its_first_beat(small_disk):
    faulty.fill(small_disk)
    beat = f"import pathlib, fsbench.launch.heartbeat as h; h.Heartbeat(pathlib.Path({str(small_disk)!r}), 0)"
    done = subprocess.run([sys.executable, "-c", beat], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith("OSError: [Errno 28] No space left on device\n")


def test_a_rank_that_was_killed_in_its_last_words_has_said_nothing(tmp_path):
    make_room(tmp_path, 0)
    path = tmp_path / "error-0.json"
    assert read_errors(tmp_path) == []
    path.write_text('{"rank": 0, "kind": "fai')
    assert read_errors(tmp_path) == []


def test_a_log_that_cannot_be_kept_does_not_cost_the_record(tmp_path):
    assert keep_log("all of it", tmp_path, "naive-r1") == "log: logs/naive-r1.txt"
    assert (tmp_path / "logs" / "naive-r1.txt").read_text() == "all of it"
    (tmp_path / "file").touch()
    assert keep_log("all of it", tmp_path / "file", "naive-r1") == "its log could not be kept: Not a directory"


def test_of_a_log_without_end_the_end_is_kept(tmp_path):
    log = Path(tmp_path / "log.txt")
    log.write_bytes(b"a" * MOST_BYTES + b"the end")
    assert len(tail(log)) == MOST_BYTES
    assert tail(log).endswith("aaathe end")

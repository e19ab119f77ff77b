"""What the next session may remove, and what it must leave alone: the folder for temporary files may be everybody's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

from fsbench.launch.leftovers import remove_leftovers
from fsbench.launch.system import kill_groups, kill_run, processes_of, state_of

GONE = 4_194_000
"""No process has this number: it is beyond what most systems give, and `leftover` makes sure."""


@pytest.fixture
def leftover(tmp_path, monkeypatch):
    """The folder of a run whose fsbench is gone."""
    assert state_of(GONE) == "gone"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"fsbench-{GONE}-x"
    folder.mkdir()
    return folder


@pytest.fixture
def sleeper():
    """Starts a process in a session of its own."""
    started = []

    def start(**environment: str) -> subprocess.Popen:
        command = [sys.executable, "-c", "print('up', flush=True); import signal; signal.pause()"]
        process = subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.PIPE)
        assert process.stdout
        process.stdout.readline()
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_the_folder_goes_and_every_process_that_has_its_files_there(leftover, sleeper):
    theirs, deeper = sleeper(TMPDIR=str(leftover)), sleeper(TMPDIR=str(leftover / "deeper"))
    remove_leftovers()
    assert [theirs.wait(10), deeper.wait(10)] == [-signal.SIGKILL] * 2
    assert not leftover.exists()


def test_a_file_that_a_dying_process_makes_meanwhile_goes_as_well(leftover, monkeypatch):
    remove, calls = shutil.rmtree, []

    def remove_and_be_late(folder, **how):
        remove(folder, **how)
        calls.append(folder)
        if len(calls) == 1:
            folder.mkdir()
            (folder / "late").touch()

    monkeypatch.setattr(shutil, "rmtree", remove_and_be_late)
    remove_leftovers()
    assert len(calls) == 2
    assert not leftover.exists()


@pytest.mark.parametrize("number", ["0", "1", "-1", "9" * 30, "²"])
def test_a_number_in_it_that_is_no_ranks_kills_nobody(leftover, number):
    (leftover / "heartbeat-0").write_text(f"{number} 0 0 train")
    remove_leftovers()
    assert not leftover.exists()


def test_the_group_of_someone_else_lives_though_a_heartbeat_names_it(leftover, sleeper):
    other = sleeper()
    (leftover / "heartbeat-0").write_text(f"{other.pid} 0 0 train")
    remove_leftovers()
    assert other.poll() is None


def test_a_pipe_in_it_holds_nothing_up(leftover):
    os.mkfifo(leftover / "heartbeat-0")
    remove_leftovers()
    assert not leftover.exists()


@pytest.mark.parametrize("name", ["fsbench-²-x", "fsbench-x-y", "fsbench-{living}-x", "fsbench--x"])
def test_folders_of_other_names_and_of_the_living_stay(leftover, name):
    other = leftover.with_name(name.format(living=os.getpid()))
    other.mkdir()
    remove_leftovers()
    assert other.exists()


def test_a_link_is_not_followed(leftover, tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    leftover.rmdir()
    leftover.symlink_to(kept)
    remove_leftovers()
    assert (kept / "file").exists()


def test_groups_are_killed_that_ranks_of_the_run_lead_and_no_others(tmp_path, sleeper):
    rank, other = sleeper(TMPDIR=str(tmp_path)), sleeper(TMPDIR=f"{tmp_path}-2")
    kill_groups(tmp_path, [rank.pid, other.pid, 0, 1, os.getpgrp()])
    assert rank.wait(10) == -signal.SIGKILL
    assert other.poll() is None


def test_a_run_is_killed_by_its_folder_alone(tmp_path, sleeper):
    process = sleeper(TMPDIR=str(tmp_path))
    assert processes_of(tmp_path) == [process.pid]
    kill_run(tmp_path)
    assert process.wait(10) == -signal.SIGKILL

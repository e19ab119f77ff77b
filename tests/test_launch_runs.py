"""Whole runs in fresh processes through the command line: what is recorded, and that nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests import sessions

pytest.importorskip("torch")
pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(180)]

environment = sessions.environment
HANGING = ("--sharding", "faulty:how=hang", "--steps", "6")


def test_a_run_records_every_metric_or_why_it_is_missing(tmp_path, environment):
    arguments = ["--sharding", "naive", "--sharding", "cost-aware", "--steps", "8", "--quiet"]
    done = sessions.run(tmp_path / "set", environment, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "measured on CPU" in done.stdout
    assert "noise floor: every rank the same samples" in done.stdout
    found = sessions.records(tmp_path / "set")
    assert found.keys() == {"naive", "cost-aware"}
    for record in found.values():
        check_record(record)
    assert found["naive"]["observed"]["sharding"]["moved"] == 0
    assert found["cost-aware"]["observed"]["sharding"]["moved"] > 0
    assert found["cost-aware"]["metrics"]["imbalance_predicted"] < found["naive"]["metrics"]["imbalance_predicted"]
    assert sessions.left(environment) == []


def check_record(record: dict) -> None:
    metrics = record["metrics"]
    assert record["status"] == "ok"
    assert record["kind"] == "cpu"
    assert {name for name, value in metrics.items() if value is None} == record["missing"].keys()
    parts = [value for name, value in metrics.items() if name.startswith("bubble_")]
    assert sum(parts) == pytest.approx(metrics["bubble"], abs=1e-9)
    assert 0 < metrics["bubble"] < 1
    assert metrics["steps_measured"] == 6
    assert len(record["per_rank"]) == 2
    classes = metrics["bytes_by_class"]
    assert classes["ids"] + classes["rows"] + classes["gradients"] == metrics["embedding_bytes_per_step"]
    assert classes["rows"] == classes["gradients"]
    # a tiny model is one bucket: 8 steps, and 2 + 8 of the noise floor
    assert record["observed"]["sync"]["operations"] == {"all_reduce dense": 8 + 2 + 8}


def test_a_strategy_that_cannot_run_on_the_ranks_is_unsupported_with_its_reason(tmp_path, environment):
    done = sessions.run(tmp_path / "set", environment, "--sharding", "elsewhere", "--steps", "2")
    assert done.returncode == 1
    record = sessions.records(tmp_path / "set")["elsewhere"]
    assert (record["status"], record["reason"]) == ("unsupported", "needs a rank that was never built")


def test_ctrl_c_keeps_finished_runs_and_leaves_nothing_and_resume_runs_the_rest(tmp_path, environment):
    arguments = ["--sharding", "naive", "--sharding", "cost-aware", "--steps", "6"]
    folder = tmp_path / "set"
    started = subprocess.Popen(sessions.command(folder, *arguments), env=environment, stderr=subprocess.PIPE, text=True)
    sessions.wait_until(lambda: (folder / "runs.jsonl").exists() and len(sessions.all_records(folder)) == 1)
    sessions.wait_until(lambda: sessions.ranks(environment))
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=30)
    assert started.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert sessions.left(environment) == []
    first = sessions.records(folder)
    assert [record["status"] for record in first.values()] == ["ok"]
    resumed = sessions.run(folder, environment, *arguments, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert sessions.records(folder).keys() == {"naive", "cost-aware"}
    assert first.items() <= sessions.records(folder).items()


def test_ctrl_c_a_second_time_cuts_no_cleanup_short(tmp_path, environment):
    hold = ("--sharding", "faulty:how=hold", "--steps", "6")
    started = subprocess.Popen(
        sessions.command(tmp_path / "set", *hold), env=environment, stderr=subprocess.PIPE, text=True
    )
    sessions.wait_until(lambda: sessions.training(environment))
    for _ in range(3):
        started.send_signal(signal.SIGINT)
        sessions.wait_until(lambda: taken(started.pid))
    _, errors = started.communicate(timeout=30)
    assert started.returncode == 130
    assert "Traceback" not in errors
    assert sessions.left(environment) == []


def taken(pid: int) -> bool:
    """Whether no signal is on its way to a process; true of one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return True
    return all(int(line.split()[1], 16) == 0 for line in lines if line.startswith(("SigPnd", "ShdPnd")))


def test_nothing_outlives_a_launcher_that_is_killed(tmp_path, environment):
    parent = ("--sharding", "parent:hang=true", "--steps", "6")
    with subprocess.Popen(sessions.command(tmp_path / "set", *parent), env=environment) as started:
        sessions.wait_until(lambda: sessions.training(environment))
        assert len(sessions.children(environment)) == 4
        started.kill()
    sessions.wait_until(lambda: sessions.left(environment) == [], limit_s=20)


def test_a_launcher_that_is_killed_with_its_janitor_takes_the_ranks_along_and_resume_removes_the_rest(
    tmp_path, environment
):
    out = tmp_path / "set"
    with subprocess.Popen(sessions.command(out, *HANGING), env=environment) as started:
        sessions.wait_until(lambda: sessions.ranks(environment))
        os.kill(sessions.janitor(environment), signal.SIGKILL)
        started.kill()
    sessions.wait_until(lambda: not sessions.processes(environment), limit_s=20)
    assert len(sessions.left(environment)) == 1  # the folder of the run
    assert sessions.all_records(out) == []
    assert sessions.run(out, environment, "--sharding", "naive", "--steps", "6", "--resume").returncode == 0
    assert [record["status"] for record in sessions.all_records(out)] == ["ok"]
    assert sessions.left(environment) == []


def test_what_a_strategy_started_ends_with_its_run_and_bad_evidence_is_noted(tmp_path, environment):
    done = sessions.run(tmp_path / "set", environment, "--sharding", "parent", "--steps", "4")
    assert done.returncode == 0, done.stderr
    record = sessions.records(tmp_path / "set")["parent"]
    assert record["observed"]["sharding"]["evidence"]["error"].startswith("not to be recorded: TypeError")
    assert sessions.left(environment) == []


def test_a_thread_that_a_strategy_left_holds_up_no_run_that_is_done(tmp_path, environment):
    done = sessions.run(tmp_path / "set", environment, "--sharding", "faulty:how=linger", "--steps", "6")
    assert done.returncode == 0, done.stderr
    assert sessions.left(environment) == []


def test_the_folder_for_temporary_files_may_have_any_name(tmp_path, environment):
    folder = tmp_path / "a b,c=ä#?%20;x"
    folder.mkdir()
    done = sessions.run(tmp_path / "set", {**environment, "TMPDIR": str(folder)}, "--sharding", "naive", "--steps", "4")
    assert done.returncode == 0, done.stderr


def test_a_sigterm_ends_a_session_like_ctrl_c(tmp_path, environment):
    started = subprocess.Popen(sessions.command(tmp_path / "set", *HANGING), env=environment)
    sessions.wait_until(lambda: sessions.training(environment))
    started.terminate()
    assert started.wait(timeout=30) == 130
    assert sessions.left(environment) == []

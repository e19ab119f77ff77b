"""`fsbench calibrate`: what it prints and leaves, what it refuses; and runs that are balanced by what it measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fsbench.costs.profile import Profile, profile_path
from fsbench.launch.local import Local
from fsbench.options import Spec
from fsbench.plugins import create
from tests import fakes, support
from tests.fakes import run_command
from tests.test_costs_profile import profile

TINY = support.TINY_LONG.replace("eval_users=150", "eval_users=40")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder, and the environment of a rank, so that everything happens in this process."""
    monkeypatch.chdir(tmp_path)
    for name, value in Local().environment().items():
        monkeypatch.setenv(name, value)
    return tmp_path


def calibrate(capsys, *arguments: str) -> fakes.Outcome:
    pytest.importorskip("torch")
    return run_command(capsys, "calibrate", "--workload", TINY, *arguments)


def test_a_profile_is_left_where_runs_look_for_it_and_described(here, capsys):
    done = calibrate(capsys, "--samples", "400")
    assert (done.exit_code, done.err) == (0, "")
    path = profile_path(create("workloads", Spec.parse(TINY)))
    found = Profile.read(here / path)
    assert set(found.coefficients_s) == {"sample", "token", "token^2", "batch"}
    assert found.workload["name"] == "long-cpu"
    assert found.machine["threads"] == 1
    assert found.measured["samples"] == {"read": 4000, "kept": 400}
    assert 0 < found.error["median"] <= found.error["p95"]
    assert sum(found.measured["shares"].values()) == pytest.approx(1)
    lines = done.out.splitlines()
    assert lines[0].startswith("long-cpu on cpu (")
    assert lines[1].startswith("400 of 4,000 samples read, ")
    assert lines[2].startswith("compute = ")
    assert lines[2].count(" a ") == 4
    assert "error on held-out rank-batches: median " in lines[4]
    assert "by operations alone (costs=flops): median " in lines[5]
    assert lines[-1] == f"profile: {path}"


def test_too_few_samples_say_how_many_rank_batches_they_gave_and_leave_nothing(here, capsys):
    done = calibrate(capsys, "--samples", "20", "--out", "mine.json")
    assert done.exit_code == 2
    assert done.err.startswith("fsbench: error: 20 samples gave ")
    assert done.err.endswith(" rank-batches to fit and 1 to test on; 16 and 5 are needed: raise --samples\n")
    assert list(here.iterdir()) == []


def test_too_little_time_is_told_apart_from_too_few_samples(here, capsys):
    done = calibrate(capsys, "--seconds", "1e-9", "--samples", "400")
    assert done.exit_code == 2
    assert "1e-09 s gave 0 rank-batches to fit and 0 to test on" in done.err
    assert done.err.endswith("raise --seconds\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload", "nonsense"], "unknown workload 'nonsense'"),
        (["--workload", "long-cpu:dim=x"], "option dim=x: expected a whole number"),
        (["--samples", "0"], "Invalid value for '--samples'"),
        (["--seconds", "0"], "Invalid value for '--seconds'"),
        (["--seconds", "-1"], "Invalid value for '--seconds'"),
        (["--seconds", "nan"], "--seconds is nan, expected a number above 0"),
        (["--threads", "0"], "Invalid value for '--threads'"),
        (["--out", "."], "Invalid value for '--out'"),
        (["--out", "file/p.json"], "cannot write the profile to file/p.json"),
        (["--workload", "ml-100k", "--data-dir", "nowhere"], "MovieLens-100K is not in nowhere"),
    ],
)
def test_bad_input_is_one_line_and_ends_with_code_2(here, capsys, arguments, message):
    pytest.importorskip("torch")
    (here / "file").write_text("")
    done = run_command(capsys, "calibrate", *arguments)
    assert done.exit_code == 2
    assert done.err.startswith("fsbench: error: ")
    assert done.err.count("\n") == 1
    assert message in done.err


def balanced(capsys, *arguments: str) -> fakes.Outcome:
    pytest.importorskip("torch")
    return run_command(capsys, "run", "--workload", TINY, "--out", "set", "--quiet", *arguments)


def test_a_run_that_asks_for_a_profile_that_is_not_there_ends_before_it_starts(here, capsys):
    done = balanced(capsys, "--sharding", "naive:costs=profile")
    assert done.exit_code == 2
    assert done.err.startswith("fsbench: error: results/profiles/LongCpu-")
    assert done.err.endswith("no such profile; `fsbench calibrate` makes one\n")
    assert not (here / "set").exists()


def test_a_run_that_asks_for_the_profile_of_something_else_ends_before_it_starts(here, capsys):
    profile(support.with_options(TINY, layers=2)).write(Path("other.json"))
    done = balanced(capsys, "--sharding", "naive:costs=profile,profile=other.json")
    assert done.exit_code == 2
    assert "other.json is the profile of long-cpu with layers=2, not layers=1" in done.err


def test_a_profile_of_another_machine_is_used_with_a_warning(here, capsys, monkeypatch):
    monkeypatch.setattr("fsbench.launch.session.run_session", fakes.FakeSession())
    profile(TINY).write(Path("p.json"))
    done = balanced(capsys, "--sharding", "naive:costs=profile,profile=p.json", "--on", "local:ranks=2,threads=3")
    assert done.exit_code == 0
    assert "fsbench: warning: p.json was not measured on what local:ranks=2,threads=3 is: " in done.err
    assert "model: Abacus 3, here " in done.err
    assert "threads: 1, here 3" in done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("costs=guess", "expected one of flops, profile, online"),
        ("speeds=fast", "expected one of equal, measured"),
        ("profile=p.json", "profile=p.json is read with costs=profile only, not with costs=flops"),
        ("token_limit=0", "token_limit is 0, expected at least 1"),
    ],
)
def test_options_of_any_sharding_are_checked(here, capsys, options, message):
    done = balanced(capsys, "--sharding", f"naive:{options}")
    assert done.exit_code == 2
    assert message in done.err


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_calibrate_and_run_with_the_profile_in_fresh_processes(tmp_path):
    pytest.importorskip("torch")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, map(str, sys.path)))}

    def fsbench(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fsbench", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    measured = fsbench("calibrate", "--workload", TINY, "--samples", "400")
    assert measured.returncode == 0, measured.stderr
    path = measured.stdout.splitlines()[-1].removeprefix("profile: ")
    left = json.loads((tmp_path / path).read_text())
    shardings = ("naive:costs=profile", "cost-aware:costs=profile", "cost-aware:costs=online,speeds=measured")
    asked = [word for sharding in shardings for word in ("--sharding", sharding)]
    done = fsbench("run", "--workload", TINY, "--steps", "24", "--out", "set", "--quiet", *asked)
    assert (done.returncode, done.stderr) == (0, "")
    lines = (tmp_path / "set" / "runs.jsonl").read_text().splitlines()
    records = {record["cell"]["sharding"]: record for record in map(json.loads, lines)}
    naive, profiled, online = (records[sharding] for sharding in shardings)
    for record in (naive, profiled):
        found = record["observed"]["sharding"]
        assert found["costs"]["held_out_error"] == left["error"]
        assert found["costs"]["machine_differs"] == []
        assert found["repeatable"]
        assert found["speeds"] == "equal"
    assert 1 <= profiled["metrics"]["imbalance_predicted"] < naive["metrics"]["imbalance_predicted"]
    assert not online["observed"]["sharding"]["repeatable"]
    assert len(online["observed"]["sharding"]["speeds"]) == 2
    flops = [record["metrics"]["tflops"] * record["metrics"]["train_s"] for record in records.values()]
    assert max(flops) < 10 * min(flops)  # operations, whatever the unit of the costs

"""Whole runs in fresh processes through the command line: what is recorded, and that nothing is left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import fakes, support

pytest.importorskip("torch")
pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(180)]

TINY = support.TINY_LONG.replace("eval_users=150", "eval_users=40")

PLUGINS = '''
    import os
    import subprocess
    import threading

    from fsbench.axes import Sharding


    class Failing(Sharding):
        """Raises on rank 1 in step 3."""

        moves = False
        lookahead = 1

        def assign(self, batch):
            if batch.step == 3 and self.context.rank == 1:
                raise ValueError("rank 1 has had enough")
            return batch.source.astype("int64")


    class Stuck(Failing):
        """Never comes back on rank 1 in step 3."""

        def assign(self, batch):
            if batch.step == 3 and self.context.rank == 1:
                threading.Event().wait()
            return batch.source.astype("int64")


    class Vanishing(Failing):
        """Rank 1 leaves without a word in step 3."""

        def assign(self, batch):
            if batch.step == 3 and self.context.rank == 1:
                os._exit(7)
            return batch.source.astype("int64")


    class Killed(Failing):
        """Rank 1 is killed in step 3, as by the kernel when memory runs out."""

        def assign(self, batch):
            if batch.step == 3 and self.context.rank == 1:
                os.kill(os.getpid(), 9)
            return batch.source.astype("int64")


    class Parent(Failing):
        """Starts a process of its own and forgets it; its evidence is no JSON."""

        def setup(self, context):
            super().setup(context)
            subprocess.Popen(["sleep", "86399"])

        def assign(self, batch):
            return batch.source.astype("int64")

        def evidence(self):
            return {"what": object()}


    class Elsewhere(Failing):
        """Finds out on the ranks that it cannot run."""

        def setup(self, context):
            from fsbench.errors import Unsupported

            raise Unsupported("needs a rank that was never built")
'''


@pytest.fixture
def environment(tmp_path):
    """A temporary folder of its own for every process, and the plugins above."""
    names = {
        name: f"odd_sharding:{name.title()}"
        for name in ("failing", "stuck", "vanishing", "killed", "parent", "elsewhere")
    }
    fakes.install(tmp_path / "site", "odd-sharding", {"sharding": names}, {"odd_sharding.py": PLUGINS})
    (tmp_path / "tmp").mkdir()
    path = os.pathsep.join(filter(None, (str(tmp_path / "site"), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path / "tmp")}


def command(folder: Path, *arguments: str) -> list[str]:
    base = [sys.executable, "-m", "fsbench", "run", "--workload", TINY, "--out", str(folder)]
    return [*base, *arguments]


def records(folder: Path) -> dict[str, dict]:
    """By sharding."""
    lines = (folder / "runs.jsonl").read_text().splitlines()
    return {record["cell"]["sharding"]: record for record in map(json.loads, lines)}


def processes_of(environment) -> list[str]:
    """Command lines of ranks and launchers whose order file lies in this test's temporary folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if environment["TMPDIR"] in line:
                found.append(line)
    return found


def wait_until(condition, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)  # how often to look; nothing depends on its length


def training(environment) -> bool:
    """Whether a rank of a run has begun to train."""
    beats = Path(environment["TMPDIR"]).glob("fsbench-*/heartbeat-0")
    return any(b" train" in beat.read_bytes() for beat in beats)


def test_a_run_records_every_metric_or_why_it_is_missing(tmp_path, environment):
    arguments = ["--sharding", "naive", "--sharding", "cost-aware", "--steps", "8", "--quiet"]
    done = subprocess.run(command(tmp_path / "set", *arguments), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "measured on CPU" in done.stdout
    assert "noise floor: every rank the same samples" in done.stdout
    found = records(tmp_path / "set")
    assert found.keys() == {"naive", "cost-aware"}
    for record in found.values():
        check_record(record)
    assert found["naive"]["observed"]["sharding"]["moved"] == 0
    assert found["cost-aware"]["observed"]["sharding"]["moved"] > 0
    assert found["cost-aware"]["metrics"]["imbalance_predicted"] < found["naive"]["metrics"]["imbalance_predicted"]
    assert processes_of(environment) == []
    assert list(Path(environment["TMPDIR"]).iterdir()) == []


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


def test_one_failed_run_does_not_stop_the_others(tmp_path, environment):
    names = ("failing", "naive", "vanishing", "killed")
    arguments = [*(word for name in names for word in ("--sharding", name)), "--steps", "6"]
    done = subprocess.run(command(tmp_path / "set", *arguments), env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    found = records(tmp_path / "set")
    assert found["naive"]["status"] == "ok"
    assert found["failing"]["status"] == "failed"
    assert found["failing"]["reason"].startswith("rank 1, train ")
    assert "ValueError: rank 1 has had enough" in found["failing"]["reason"]
    assert found["vanishing"]["status"] == "failed"
    assert found["vanishing"]["reason"].startswith("rank 1, train ")
    assert "ended without a word, exit code 7" in found["vanishing"]["reason"]
    assert found["killed"]["reason"].startswith("rank 1, train ")
    assert "killed by SIGKILL (out of memory?)" in found["killed"]["reason"]
    for name in ("failing", "vanishing", "killed"):
        assert set(found[name]["metrics"].values()) == {None}
        assert (tmp_path / "set" / "logs" / f"{found[name]['run_id']}.txt").exists()
    assert processes_of(environment) == []


def test_a_rank_that_hangs_is_stopped_at_the_time_limit_with_every_ranks_last_phase(tmp_path, environment):
    arguments = ["--sharding", "stuck", "--steps", "6", "--set", "time_limit_s=20"]
    done = subprocess.run(command(tmp_path / "set", *arguments), env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    record = records(tmp_path / "set")["stuck"]
    assert record["status"] == "timeout"
    assert record["reason"].startswith("time limit of 20 s reached; rank 0: train 3/6, rank 1: train ")
    assert processes_of(environment) == []


def test_a_strategy_that_cannot_run_on_the_ranks_is_unsupported_with_its_reason(tmp_path, environment):
    arguments = ["--sharding", "elsewhere", "--steps", "2"]
    done = subprocess.run(command(tmp_path / "set", *arguments), env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    record = records(tmp_path / "set")["elsewhere"]
    assert (record["status"], record["reason"]) == ("unsupported", "needs a rank that was never built")


def test_ctrl_c_keeps_finished_runs_and_leaves_no_process_and_resume_runs_the_rest(tmp_path, environment):
    arguments = ["--sharding", "naive", "--sharding", "cost-aware", "--steps", "6"]
    folder = tmp_path / "set"
    started = subprocess.Popen(command(folder, *arguments), env=environment, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: (folder / "runs.jsonl").exists() and (folder / "runs.jsonl").read_text().count("\n") == 1)
    wait_until(lambda: len(processes_of(environment)) > 2)
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=30)
    assert started.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert processes_of(environment) == []
    first = records(folder)
    assert [record["status"] for record in first.values()] == ["ok"]
    resumed = subprocess.run(command(folder, *arguments, "--resume"), env=environment, capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stderr
    assert records(folder).keys() == {"naive", "cost-aware"}
    assert first.items() <= records(folder).items()


@pytest.mark.parametrize("when", ["a rank has just started", "a rank trains"])
def test_ranks_do_not_outlive_a_launcher_that_is_killed(tmp_path, environment, when):
    started = subprocess.Popen(command(tmp_path / "set", "--sharding", "stuck", "--steps", "6"), env=environment)
    if when == "a rank trains":
        wait_until(lambda: training(environment))
    else:
        wait_until(lambda: any("fsbench.train.rank" in line.split(" torch.")[0] for line in processes_of(environment)))
    started.kill()
    started.wait()
    wait_until(lambda: processes_of(environment) == [], limit_s=20)


def test_what_a_strategy_started_ends_with_its_run_and_bad_evidence_is_noted(tmp_path, environment):
    done = subprocess.run(
        command(tmp_path / "set", "--sharding", "parent", "--steps", "4"),
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    record = records(tmp_path / "set")["parent"]
    assert record["observed"]["sharding"]["evidence"]["error"].startswith("not to be recorded: TypeError")
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert b"sleep\x0086399\x00" not in lines


def test_a_sigterm_ends_a_session_like_ctrl_c(tmp_path, environment):
    started = subprocess.Popen(command(tmp_path / "set", "--sharding", "stuck", "--steps", "6"), env=environment)
    wait_until(lambda: training(environment))
    started.terminate()
    assert started.wait(timeout=30) == 130
    assert processes_of(environment) == []
    assert list(Path(environment["TMPDIR"]).iterdir()) == []

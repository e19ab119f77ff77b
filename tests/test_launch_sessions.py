"""Sessions of many runs whose ranks are real processes that train nothing: kills at random, limits, leaks."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter

import pytest

from fsbench.axes import AXES
from fsbench.matrix import BUILT_IN, product
from tests import sessions

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(180)]

environment = sessions.environment
MATRIX = ("--matrix", "--on", "toy", "--steps", "4", "--quiet")
ONE = ("--on", "toy", "--steps", "4", "--quiet")
NAMES = ["+".join(cell.strategies[axis] for axis in AXES) for cell in product(["w"], ["c"], BUILT_IN)]


def with_faults(environment, faults: dict) -> dict:
    return {**environment, "TOY_FAULTS": json.dumps(faults)}


def statuses(out) -> Counter:
    latest = {record["run_id"]: record["status"] for record in sessions.all_records(out)}
    return Counter(latest.values())


def test_a_matrix_in_which_every_third_run_is_killed_has_all_records_and_after_resume_all_are_ok(tmp_path, environment):
    chance, out = random.Random(5), tmp_path / "set"
    killed = {name: ("kill", chance.randrange(2)) for name in chance.sample(NAMES, len(NAMES) // 3)}
    first = sessions.run(out, with_faults(environment, killed), *MATRIX)
    assert first.returncode == 1, first.stderr
    assert statuses(out) == {"ok": 11, "failed": 5}
    failed = [record for record in sessions.all_records(out) if record["status"] == "failed"]
    for record in failed:
        _, victim = killed["+".join(record["cell"][axis] for axis in AXES)]
        assert record["reason"].startswith(f"rank {victim}, train 1/4: ended without a word (log: ")
    second = sessions.run(out, environment, *MATRIX, "--resume")
    assert second.returncode == 0, second.stderr
    assert statuses(out) == {"ok": 16}
    assert len(sessions.all_records(out)) == 16 + len(killed)  # just what was missing ran again
    assert sessions.left(environment) == []


def test_at_the_time_limit_a_run_is_stopped_with_every_ranks_last_phase(tmp_path, environment):
    hanging = with_faults(environment, {NAMES[0]: ("hang", 1)})
    done = sessions.run(tmp_path / "set", hanging, *ONE, "--set", "time_limit_s=5")
    assert done.returncode == 1
    (record,) = sessions.all_records(tmp_path / "set")
    assert record["status"] == "timeout"
    # Rank 0 has no peer to wait for: it ended its part.
    reason = "time limit of 5 s reached; rank 1 is late; rank 0: done; rank 1: train 1/4 (log: "
    assert record["reason"].startswith(reason)
    assert sessions.left(environment) == []


def test_a_session_leaks_no_memory_thread_file_or_shared_memory_a_run(environment):
    command = [sys.executable, "-m", "tests.bench.leaks", "--runs", "16", "--toy"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "flat" in done.stdout
    assert sessions.left(environment) == []

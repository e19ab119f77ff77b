"""`fsbench run --on sim:PROFILE,ranks=N`: records of simulated runs, and what is refused before anything starts."""

from __future__ import annotations

import pytest

from fsbench.results.record_shape import record_fault
from tests.fakes import run_command
from tests.sessions import all_records, environment, run

__all__ = ["environment"]

SIMULATED = ("--on", "sim:h100-ib200,ranks=16", "--steps", "8", "--quiet")


@pytest.mark.slow
def test_simulated_runs_are_recorded_as_such_and_what_has_no_plan_as_unsupported(tmp_path, environment):
    embedding = ("--embedding", "plain", "--embedding", "prioritized", "--embedding", "hot-first")
    done = run(tmp_path / "out", environment, *SIMULATED, *embedding)
    assert done.returncode == 1, done.stderr  # what was named is unsupported
    records = {record["cell"]["embedding"]: record for record in all_records(tmp_path / "out")}
    assert [record_fault(record) for record in records.values()] == [None] * 3
    assert {record["kind"] for record in records.values()} == {"sim"}
    assert records["hot-first"]["status"] == "unsupported"
    assert "HotFirst has no plan" in records["hot-first"]["reason"]
    for name in ("plain", "prioritized"):
        assert records[name]["status"] == "ok", records[name]["reason"]
        assert records[name]["metrics"]["step_ms_p50"] > 0
        assert len(records[name]["per_rank"]) == 16
        assert records[name]["metrics"]["loss"] is None
        assert records[name]["missing"]["loss"].startswith("a simulated machine trains nothing")
    assert "measured on" not in done.stdout


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ("sim:h100-ib20,ranks=8", "unknown profile 'h100-ib20'; did you mean h100-ib200"),
        ("sim:h100-ib200,ranks=12", "h100-ib200.toml: ranks_a_host is 8, of which 12 ranks are no multiple"),
        ("sim:h100-ib200,ranks=0", "ranks=0: expected 1 to 16384"),
        ("sim:ranks=8", "needs profile=..."),
        ("sim:h100-ib200,hosts=8", "has no option 'hosts'"),
        ("sim:h100-ib200", "'h100-ib200' is not KEY=VALUE"),
        ("local:h100-ib200,ranks=2", "'h100-ib200' is not KEY=VALUE"),
    ],
)
def test_a_machine_that_there_is_not_is_refused_in_one_line(capsys, cluster, message):
    outcome = run_command(capsys, "run", "--on", cluster, "--dry-run")
    assert outcome[0] == 2
    assert message in outcome[2]
    assert len(outcome[2].strip().splitlines()) == 1

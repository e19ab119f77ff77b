"""A whole run of a matrix file with parameter groups, in processes of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import sessions

pytest.importorskip("torch")
pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(120)]

environment = sessions.environment
MATRIX = """\
workloads = ["dense:batch=4,inputs=6,hidden=5,layers=2"]
clusters = ["bare:ranks=2"]
sync = [
    { "layers.0.*" = "shadow-easgd:duty=1", "layers.2.*" = "shadow-ma:duty=1", "*" = "allreduce" },
]
steps = 20
"""


def test_a_run_has_servers_and_lanes_of_each_group_and_tells_of_each_what_it_did(environment, tmp_path):
    (tmp_path / "groups.toml").write_text(MATRIX)
    command = [sys.executable, "-m", "fsbench", "run", "--matrix", str(tmp_path / "groups.toml")]
    command += ["--out", str(tmp_path / "set")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (record,) = sessions.all_records(tmp_path / "set")
    assert record["cell"]["sync"] == (
        "grouped:groups=layers.0.*=shadow-easgd:duty=1;layers.2.*=shadow-ma:duty=1;*=allreduce"
    )
    assert list(record["observed"]["servers"]) == ["group0-sync-server-0"]
    lanes = record["observed"]["collectives"]["lanes"]
    assert {"group0-sync-server-0", "group1-averaging", "group2-dense"} < lanes.keys()
    groups = record["observed"]["sync"]["evidence"]
    assert [group["strategy"] for group in groups.values()] == ["shadow-easgd:duty=1", "shadow-ma:duty=1", "allreduce"]
    assert min(group["syncs"] for group in groups.values()) > 0
    assert record["observed"]["sync"]["exact"] is False

"""Faults of ranks, injected into real ones: what is recorded of each, that the session goes on, and leaves nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests import sessions

pytest.importorskip("torch")
pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(300)]

environment = sessions.environment

FAULTS = {
    "raise": ("failed", r"rank 1, train \d/6: ValueError: rank 1 has had enough"),
    "thread": ("failed", r"rank 1, train \d/6: thread 'busy': ValueError: rank 1 has had enough"),
    "kill": ("failed", r"rank 1, train \d/6: killed by SIGKILL \(out of memory, or a limit of the system\?\)"),
    "terminate": ("failed", r"rank 1, train \d/6: ended by a SIGTERM that was not ours"),
    "vanish": ("failed", r"rank 1, train \d/6: ended without a word, exit code 7"),
    "early": ("failed", r"rank 1, data: ended without a word"),
    "hungry": ("oom", r"rank 1, train \d/6: MemoryError"),
    "crash": ("failed", r"rank 1, train \d/6: killed by SIGSEGV"),
}
"""Status and reason by fault. The reason goes on with where the log is."""


TORCH, BARE = "local:ranks=2", "bare:ranks=2"
WITH_TORCH = ("kill", "terminate", "vanish", "crash")
"""Faults of which torch's launcher tells how they ended. The others do without it, which takes half the time."""


@pytest.fixture(scope="module")
def sessions_of_faults(request, tmp_path_factory):
    """By cluster, one session with a run for each fault that this test run asks for, and a sound one among them."""
    asked = asked_for(request, "fault")
    with_torch = asked.intersection(WITH_TORCH)
    halves = {TORCH: with_torch, BARE: asked - with_torch}
    return {cluster: start(tmp_path_factory.mktemp("faults"), cluster, faults) for cluster, faults in halves.items()}


def asked_for(request, parameter: str) -> set[str]:
    """Its values in the tests of this file that are to run."""
    mine = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    return {item.callspec.params[parameter] for item in mine if parameter in item.callspec.params}


def start(folder, cluster: str, faults: set[str]):
    if not faults:
        return None
    environment = sessions.make_environment(folder)
    shardings = [word for fault in sorted(faults) for word in ("--sharding", f"faulty:how={fault}")]
    limits = ("--steps", "6", "--set", "time_limit_s=60")
    done = sessions.run(folder / "set", environment, "--on", cluster, *shardings, "--sharding", "naive", *limits)
    return folder / "set", environment, done


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_recorded_with_its_status_rank_phase_and_message_and_other_runs_go_on(sessions_of_faults, fault):
    out, environment, done = sessions_of_faults[TORCH if fault in WITH_TORCH else BARE]
    status, reason = FAULTS[fault]
    records = sessions.records(out)
    record = records[f"faulty:how={fault}"]
    assert record["status"] == status, record["reason"]
    assert re.fullmatch(rf"{reason} \(log: logs/{record['run_id']}\.txt\)", record["reason"])
    assert set(record["metrics"].values()) == {None}
    assert (out / "logs" / f"{record['run_id']}.txt").exists()
    assert records["naive"]["status"] == "ok"
    assert done.returncode == 1
    assert sessions.left(environment) == []


def test_an_exception_in_forward_or_in_the_shadow_thread_is_recorded_with_its_message(tmp_path, environment):
    axes = ("--collectives", "broken-shadow", "--sync", "broken-forward", "--sync", "shadow-ma")
    done = sessions.run(tmp_path / "set", environment, "--on", BARE, *axes, "--steps", "6")
    assert done.returncode == 1
    reasons = {record["cell"]["sync"]: record["reason"] for record in sessions.all_records(tmp_path / "set")}
    assert re.match(r"rank 1, train 3/6: ArithmeticError: this forward goes nowhere \(", reasons["broken-forward"])
    assert re.match(r"rank 1, train \d/6: ArithmeticError: the shadow is gone \(", reasons["shadow-ma"])
    assert sessions.left(environment) == []


def test_what_a_worker_thread_raises_ends_its_run_with_its_rank_and_number(tmp_path, environment):
    """The other run of the session has workers that are well."""
    axes = ("--embedding", "parameter-server", "--sync", "broken-worker", "--sync", "shadow-ma", "--workers", "2")
    done = sessions.run(tmp_path / "set", environment, "--on", BARE, *axes, "--steps", "6")
    assert done.returncode == 1
    records = {record["cell"]["sync"]: record for record in sessions.all_records(tmp_path / "set")}
    broken, sound = records["broken-worker"], records["shadow-ma"]
    assert re.match(r"rank 1, train \d+/12: worker 1: ArithmeticError: this worker is tired \(", broken["reason"])
    assert (sound["status"], sound["workers"]) == ("ok", 2)
    assert [(row["rank"], row["worker"]) for row in sound["per_rank"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert sessions.left(environment) == []


def test_at_the_stall_limit_the_late_rank_is_named_with_what_others_wait_for_and_the_stacks(tmp_path, environment):
    """Rank 1 is stopped by a signal, rank 2 sits in C and keeps the GIL, rank 0 waits for them."""
    faults = ("--on", "bare:ranks=3", "--sharding", "faulty:how=stop+hold", "--steps", "6")
    done = sessions.run(tmp_path / "set", environment, *faults, "--set", "stall_limit_s=10")
    assert done.returncode == 1
    (record,) = sessions.all_records(tmp_path / "set")
    assert record["status"] == "timeout"
    waits, late = r"rank 0: train \d/6, \d+ s in \w+ \w+ on lane \w+", r"rank 1: train \d/6, stopped by a signal.*"
    line = rf"no rank moved for 10 s; rank 1 is late; {waits}; {late}; rank 2: train \d/6.* \(log: .*\)"
    assert re.fullmatch(line, record["reason"])
    log = sessions.log_of(tmp_path / "set", record)
    assert log.count("Thread 0x") > 2
    assert "in _drain\n" in log  # the lanes of rank 0
    assert "stopped: no stacks\n" in log
    assert "in hang_in_c\n" in log  # although no Python code of rank 2 could run
    assert sessions.left(environment) == []


def test_ranks_of_different_versions_do_not_train_together(tmp_path, environment):
    done = sessions.run(tmp_path / "set", environment, "--on", BARE, "--sharding", "stranger", "--steps", "2")
    assert done.returncode == 1
    record = sessions.records(tmp_path / "set")["stranger"]
    assert "rendezvous: FsbenchError: ranks do not agree: rank 1 has fsbench 0.2.0, rank 0 0.1.0 (" in record["reason"]
    assert record["status"] == "failed"


OF_SERVERS = {
    "raise": ("failed", r"table-server 0, serve: ValueError: rank 1 has had enough"),
    "kill": ("failed", r"table-server 0, serve: ended without a word"),
    "stranger": (
        "failed",
        r"rank 0, rendezvous: FsbenchError: ranks and servers do not agree: "
        r"table-server 0 has fsbench 0\.2\.0, rank 0 0\.1\.0",
    ),
    "hang": (
        "timeout",
        r"no rank moved for 10 s; table-server 0 is late; "
        r"rank 0: train 3/6, \d+ s in send ids on lane table-server-0 of rank 0; "
        r"rank 1: train 5/6, \d+ s in all_gather other on lane world; table-server 0: serve",
    ),
}
"""Status and reason by fault, as for ranks."""


@pytest.fixture(scope="module")
def session_of_servers(request, tmp_path_factory):
    """One with a run for each fault of a server that this test run asks for, and a sound one. Rank 1 trains
    to its end when the server hangs for rank 0."""
    folder = tmp_path_factory.mktemp("servers")
    environment = sessions.make_environment(folder)
    embeddings = [f"faulty-tables:how={fault}" for fault in sorted(asked_for(request, "of_server"))]
    embeddings.append("parameter-server")
    axes = [word for embedding in embeddings for word in ("--embedding", embedding)]
    limits = ("--steps", "6", "--set", "time_limit_s=60", "--set", "stall_limit_s=10")
    done = sessions.run(folder / "set", environment, "--on", BARE, *axes, "--sync", "none", *limits)
    return folder / "set", environment, done


@pytest.mark.parametrize("of_server", OF_SERVERS)
def test_a_fault_of_a_server_is_recorded_with_its_status_name_and_phase(session_of_servers, of_server):
    out, environment, done = session_of_servers
    records = {record["cell"]["embedding"]: record for record in sessions.all_records(out)}
    record = records[f"faulty-tables:how={of_server}"]
    status, reason = OF_SERVERS[of_server]
    assert record["status"] == status, record["reason"]
    assert re.fullmatch(rf"{reason} \(log: logs/{record['run_id']}\.txt\)", record["reason"])
    assert (done.returncode, records["parameter-server"]["status"]) == (1, "ok")
    assert sessions.left(environment) == []


NO_PORT_LEFT = """
import os, socket, sys
open("/proc/sys/net/ipv4/ip_local_port_range", "w").write("40000 40000")
taken = socket.create_server(("::", 40000), family=socket.AF_INET6, dualstack_ipv6=True)
taken.set_inheritable(True)
os.execv(sys.executable, sys.argv[1:])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a network of its own, all of whose ports are taken, needs root")
def test_a_launcher_that_finds_its_port_taken_fails_the_run_with_the_systems_word(tmp_path, environment):
    arguments = ("--on", "local:ranks=1", "--sharding", "naive", "--steps", "2")
    command = [sys.executable, "-c", NO_PORT_LEFT, *sessions.command(tmp_path / "set", *arguments)]
    alone = ["unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh", *command]
    assert subprocess.run(alone, env=environment, capture_output=True).returncode == 1
    record = sessions.records(tmp_path / "set")["naive"]
    reason = "ended with exit code 1 and no error; rank 0: not started: RuntimeError: Failed to create a socket (log: "
    assert (record["status"], record["reason"][: len(reason)]) == ("failed", reason)
    assert "Address already in use" in sessions.log_of(tmp_path / "set", record)
    assert sessions.left(environment) == []

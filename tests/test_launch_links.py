"""Emulated links: how they are asked for, what is typed to make them, what crosses them, and that nothing stays."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fsbench.errors import UserError
from fsbench.launch import links
from fsbench.options import BitRate, Spec, rate_text
from fsbench.plugins import create
from tests import sessions as runs

RATE = BitRate(400_000_000)
refused = links.why_not(2, RATE)
needs_links = pytest.mark.skipif(refused is not None, reason=str(refused))
slow_runs = [needs_links, pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(180)]
ON_LINK = ("--on", "local:ranks=2,link=400mbit")

environment = runs.environment


def local(text: str):
    return create("clusters", Spec.parse(f"local:{text}"))


@pytest.mark.parametrize(
    ("text", "bits_per_s", "shown"),
    [
        ("400mbit", 400_000_000, "400mbit"),
        ("1gbit", 10**9, "1gbit"),
        ("1000mbit", 10**9, "1gbit"),
        ("2.5Gbit", 2_500_000_000, "2.5gbit"),
        ("25gbit", 25 * 10**9, "25gbit"),
        ("1500kbit", 1_500_000, "1.5mbit"),
    ],
)
def test_a_rate_is_read_in_bits_a_second_and_shown_in_its_largest_unit(text, bits_per_s, shown):
    link = local(f"link={text}").link
    assert link.bits_per_s == bits_per_s
    assert rate_text(link.bits_per_s) == shown


@pytest.mark.parametrize("text", ["400", "fast", "mbit", "-1mbit", "400 mbit", "4e2mbit", "400mib", "nanmbit"])
def test_what_is_no_rate_is_refused_with_examples(text):
    with pytest.raises(UserError, match=r"^cluster local \(fsbench .*\): ") as error:
        local(f"link={text}")
    assert str(error.value).endswith(f": option link={text}: expected a rate such as 400mbit or 2.5gbit")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ranks=4,link=1gbit,hosts=3", "hosts=3: 4 ranks are no equal parts on 3 hosts"),
        ("ranks=4,link=1gbit,hosts=1", "a link is between hosts: 2 to 1000 of them, not 1"),
        ("ranks=1,link=1gbit", "a link is between hosts: 2 to 1000 of them, not 1"),
        ("ranks=4,hosts=2", "hosts=2: hosts are told apart by the link between them; add link=RATE"),
        ("link=1kbit", "link=1kbit: at least 1mbit"),
        ("link=0gbit", "link=0bit: at least 1mbit"),
    ],
)
def test_hosts_that_make_no_sense_are_refused(text, message):
    with pytest.raises(UserError, match=r"^cluster local \(fsbench .*\): ") as error:
        local(text)
    assert str(error.value).endswith(f"): {message}")


def test_a_cluster_says_what_it_is():
    assert local("ranks=2").describe() == "2 local ranks, 1 torch thread each"
    assert local("ranks=4,link=400mbit,hosts=2").describe() == (
        "4 local ranks, 1 torch thread each, 2 hosts on a link of 400mbit"
    )


TWO_HOSTS = """\
ip netns add fsbench-7-bridge
ip -n fsbench-7-bridge link add name bridge0 type bridge
ip -n fsbench-7-bridge link set dev bridge0 up
ip netns add fsbench-7-h0
ip -n fsbench-7-bridge link add name h0 type veth peer name veth0 netns fsbench-7-h0
tc -n fsbench-7-bridge qdisc add dev h0 root tbf rate 400000000bit burst 131072b latency 50ms
tc -n fsbench-7-h0 qdisc add dev veth0 root tbf rate 400000000bit burst 131072b latency 50ms
ip -n fsbench-7-h0 address add 10.0.0.1/16 dev veth0
ip -n fsbench-7-h0 link set dev lo up
ip -n fsbench-7-h0 link set dev veth0 up
ip -n fsbench-7-bridge link set dev h0 master bridge0 up
ip netns add fsbench-7-h1
ip -n fsbench-7-bridge link add name h1 type veth peer name veth0 netns fsbench-7-h1
tc -n fsbench-7-bridge qdisc add dev h1 root tbf rate 400000000bit burst 131072b latency 50ms
tc -n fsbench-7-h1 qdisc add dev veth0 root tbf rate 400000000bit burst 131072b latency 50ms
ip -n fsbench-7-h1 address add 10.0.0.2/16 dev veth0
ip -n fsbench-7-h1 link set dev lo up
ip -n fsbench-7-h1 link set dev veth0 up
ip -n fsbench-7-bridge link set dev h1 master bridge0 up"""


def test_every_host_gets_a_namespace_a_cable_to_the_bridge_and_the_rate_both_ways():
    assert "\n".join(links.setup_commands(7, 2, RATE)) == TWO_HOSTS


def test_a_thousand_hosts_have_addresses_of_their_own():
    typed = links.setup_commands(7, links.MOST_HOSTS, RATE)
    addresses = {line.split()[5] for line in typed if " address add " in line}
    assert len(addresses) == links.MOST_HOSTS
    assert "10.0.3.232/16" in addresses


@pytest.mark.parametrize(
    ("cluster", "servers", "hosts"),
    [
        ("ranks=2,link=1gbit", 0, [0, 1]),
        ("ranks=4,link=1gbit", 0, [0, 1, 2, 3]),
        ("ranks=4,link=1gbit,hosts=2", 0, [0, 0, 1, 1]),
        ("ranks=2,link=1gbit", 1, [0, 1, 2]),
        ("ranks=4,link=1gbit,hosts=2", 2, [0, 0, 1, 1, 2, 3]),
    ],
)
def test_each_rank_enters_the_namespace_of_its_host_and_each_server_one_of_its_own(cluster, servers, hosts):
    command = local(cluster).command(Path("order.json"), servers)
    shell = command.index("sh")
    words = command[shell:]
    for rank, host in enumerate(hosts):
        echo = [*words[:2], words[2].replace("exec ip", "echo ip"), *words[3:]]
        said = subprocess.run(echo, env={**os.environ, "LOCAL_RANK": str(rank)}, capture_output=True, text=True)
        entered = f"ip netns exec fsbench-{os.getpid()}-h{host} {sys.executable} -m fsbench.train.rank order.json\n"
        assert said.stdout == entered


def test_ranks_without_a_link_stay_where_they_are():
    assert "sh" not in local("ranks=2").command(Path("order.json"), 0)


def test_without_iproute2_the_cluster_is_unsupported_with_the_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert links.why_not.__wrapped__(2, RATE) == "an emulated link needs iproute2: no ip and no tc found"


def test_without_root_the_cluster_is_unsupported_with_the_reason(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert links.why_not.__wrapped__(2, RATE) == "an emulated link needs root"


def test_what_the_machine_refuses_is_unsupported_with_its_answer(monkeypatch, tmp_path):
    for tool in ("ip", "tc"):
        (tmp_path / tool).write_text('#!/bin/sh\necho "RTNETLINK answers:  Operation not permitted" >&2\nexit 2\n')
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert links.why_not.__wrapped__(2, RATE) == (
        "an emulated link needs network namespaces, veth, a bridge and tbf: "
        f"ip netns add fsbench-{os.getpid()}-bridge: RTNETLINK answers: Operation not permitted"
    )


@pytest.mark.distributed
def test_an_unsupported_link_is_a_record_and_not_a_crash(tmp_path, environment):
    (tmp_path / "empty").mkdir()
    poor = {**environment, "PATH": str(tmp_path / "empty")}
    code, _ = finish(start(tmp_path / "set", poor, "--sharding", "naive", "--steps", "2"))
    assert code == 1
    record = runs.records(tmp_path / "set")["naive"]
    assert record["status"] == "unsupported"
    assert "an emulated link needs" in record["reason"]


def start(folder: Path, environment, *arguments: str) -> subprocess.Popen:
    command = runs.command(folder, *ON_LINK, "--quiet", *arguments)
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def finish(process: subprocess.Popen) -> tuple[int, str]:
    _, errors = process.communicate(timeout=150)
    return process.returncode, errors


def namespaces(pid: int) -> set[str]:
    """Names that a process left, or still has."""
    return {name for name, owner in links._owned() if owner == pid}


def interfaces() -> set[str]:
    """Of this machine itself."""
    return set(os.listdir("/sys/class/net"))


OURS = {f"fsbench-{os.getpid()}-{name}" for name in ("bridge", "h0", "h1")}


@needs_links
def test_a_network_is_gone_after_it_even_when_its_making_fails(monkeypatch):
    before = interfaces()
    with links.network(2, RATE):
        assert namespaces(os.getpid()) == OURS
    assert namespaces(os.getpid()) == set()
    complete = links.setup_commands(os.getpid(), 2, RATE)
    monkeypatch.setattr(links, "setup_commands", lambda *_: [*complete, "ip link no-such-verb"])
    with pytest.raises(links.Unsupported, match="ip link no-such-verb: "), links.network(2, RATE):
        pass
    assert namespaces(os.getpid()) == set()
    assert interfaces() == before


@needs_links
def test_the_next_network_removes_what_a_killed_process_left():
    made = subprocess.run([sys.executable, "-c", ABANDON], env=os.environ, capture_output=True, text=True, check=True)
    owner, count = map(int, made.stdout.split())
    assert count == 3
    with links.network(2, RATE):
        assert namespaces(owner) == set()


ABANDON = f"""
import os
from fsbench.launch import links
network = links.network(2, {RATE})
network.__enter__()
print(os.getpid(), sum(owner == os.getpid() for _, owner in links._owned()), flush=True)
os._exit(0)
"""


class TestRuns:
    """Whole runs on a link, through the command line."""

    pytestmark = slow_runs

    def test_the_record_tells_what_the_link_carried_and_another_fsbench_is_left_alone(self, tmp_path, environment):
        with links.network(2, RATE):
            process = start(tmp_path / "set", environment, "--sharding", "naive", "--steps", "8")
            code, errors = finish(process)
            assert namespaces(os.getpid()) == OURS
        assert (code, errors) == (0, "")
        record = runs.records(tmp_path / "set")["naive"]
        assert record["cell"]["cluster"] == "local:link=400mbit,ranks=2"
        check_link(record)
        assert namespaces(process.pid) == set()

    def test_runs_that_fail_or_reach_the_time_limit_leave_no_namespace(self, tmp_path, environment):
        faults = ("--sharding", "faulty:how=raise", "--sharding", "faulty:how=hang")
        arguments = [*faults, "--steps", "6", "--set", "time_limit_s=20"]
        process = start(tmp_path / "set", environment, *arguments)
        code, _ = finish(process)
        assert code == 1
        statuses = {name: record["status"] for name, record in runs.records(tmp_path / "set").items()}
        assert statuses == {"faulty:how=raise": "failed", "faulty:how=hang": "timeout"}
        assert namespaces(process.pid) == set()
        assert runs.left(environment) == []

    def test_ctrl_c_leaves_no_namespace(self, tmp_path, environment):
        process = start(tmp_path / "set", environment, "--sharding", "faulty:how=hang", "--steps", "6")
        runs.wait_until(lambda: runs.training(environment))
        assert len(namespaces(process.pid)) == 3
        process.send_signal(signal.SIGINT)
        assert finish(process)[0] == 130
        assert namespaces(process.pid) == set()
        assert runs.left(environment) == []

    def test_after_a_kill_ranks_and_namespaces_go_as_well(self, tmp_path, environment):
        process = start(tmp_path / "set", environment, "--sharding", "faulty:how=hang", "--steps", "6")
        runs.wait_until(lambda: runs.training(environment))
        assert len(namespaces(process.pid)) == 3
        with contextlib.closing(process.stderr):
            process.kill()
            process.wait()
        runs.wait_until(lambda: runs.left(environment) == [] and namespaces(process.pid) == set(), limit_s=20)


def check_link(record: dict) -> None:
    """gloo's own messages weigh on a cell as tiny as this one, but stay within what an operation may add."""
    link = record["observed"]["link"]
    assert link["rate"] == 400_000_000
    assert link["ratio"] == link["interface_bytes"] / link["counted_bytes"]
    assert 0.95 <= link["ratio"] < 1.2
    assert link["packets"] > 0
    assert (link["warning"], link["unchecked"]) == (None, None)

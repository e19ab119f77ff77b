"""An emulated link: each host is a network namespace of this machine, and all of them hang on one bridge.

    fsbench-PID-h0                  fsbench-PID-bridge                  fsbench-PID-h1
    ranks -- veth0 ===============> h0 -- bridge0 -- h1 ==============> veth0 -- ranks
             tbf                                     tbf

What a host sends is held to the rate on its `veth0`, what it receives on the bridge's end of the same cable. The
bridge has a namespace of its own, so that nothing of this machine's own network is touched. Names carry the process
that made them: whoever starts next removes what a killed process left, and leaves that of living ones alone.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from fsbench.errors import Unsupported
from fsbench.launch.system import state_of
from fsbench.options import BitRate
from fsbench.results.printable import one_line

INTERFACE = "veth0"
"""The interface of a host, by the same name in each of the namespaces."""
MOST_HOSTS = 1000
"""A bridge has 1023 ports."""

_FIRST_ADDRESS = ipaddress.IPv4Address("10.0.0.1")
_NAMESPACES = Path("/var/run/netns")
_OWNED = re.compile(r"fsbench-(\d+)-")


@contextlib.contextmanager
def network(hosts: int, bits_per_s: BitRate) -> Iterator[None]:
    """The namespaces of `hosts` hosts exist inside the context, and none of them after it, however it ends.

    Raises:
        Unsupported: this machine refuses a part of it; the message is the command and its answer.
    """
    owner = os.getpid()
    remove_stale()
    _remove(name for name, pid in _owned() if pid == owner)
    try:
        for command in setup_commands(owner, hosts, bits_per_s):
            _run(command)
        yield
    finally:
        _remove(name for name, pid in _owned() if pid == owner)


def remove_stale() -> None:
    """Removes the namespaces of processes that are gone."""
    _remove(name for name, pid in _owned() if state_of(pid) == "gone")


@functools.cache
def why_not(hosts: int, bits_per_s: BitRate) -> str | None:
    """Why this machine cannot have such a network, or None.

    Found out by building it, which takes a tenth of a second; each is tried once a process.
    """
    if os.geteuid() != 0:
        return "an emulated link needs root"
    if absent := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        return f"an emulated link needs iproute2: no {' and no '.join(absent)} found"
    try:
        with network(hosts, bits_per_s):
            return None
    except Unsupported as error:
        return f"an emulated link needs network namespaces, veth, a bridge and tbf: {error}"


def enter_host(ranks: int, ranks_a_host: int) -> list[str]:
    """The words before a process's command that put it on its host: those after the ranks, which are servers, have one
    each. All of them replace each other by `exec`: the process keeps the number and the parent that the launcher gave
    it, and so dies with the launcher."""
    own = f"LOCAL_RANK < {ranks} ? LOCAL_RANK / {ranks_a_host} : LOCAL_RANK - {ranks - ranks // ranks_a_host}"
    host = f"fsbench-{os.getpid()}-h$(({own}))"
    return ["sh", "-c", f'exec ip netns exec {host} "$@"', "sh"]


def setup_commands(owner: int, hosts: int, bits_per_s: BitRate) -> list[str]:
    """What process `owner` types to make the network. No word of it holds a blank."""
    hub = f"fsbench-{owner}-bridge"
    commands = [
        f"ip netns add {hub}",
        f"ip -n {hub} link add name bridge0 type bridge",
        f"ip -n {hub} link set dev bridge0 up",
    ]
    for host in range(hosts):
        commands += _host_commands(hub, f"h{host}", f"fsbench-{owner}-h{host}", _FIRST_ADDRESS + host, bits_per_s)
    return commands


def _host_commands(hub: str, port: str, name: str, address: ipaddress.IPv4Address, rate: BitRate) -> list[str]:
    shape = f"root tbf rate {rate}bit burst {_burst(rate)}b latency 50ms"
    return [
        f"ip netns add {name}",
        f"ip -n {hub} link add name {port} type veth peer name {INTERFACE} netns {name}",
        f"tc -n {hub} qdisc add dev {port} {shape}",
        f"tc -n {name} qdisc add dev {INTERFACE} {shape}",
        f"ip -n {name} address add {address}/16 dev {INTERFACE}",
        f"ip -n {name} link set dev lo up",
        f"ip -n {name} link set dev {INTERFACE} up",
        f"ip -n {hub} link set dev {port} master bridge0 up",
    ]


def _burst(rate: BitRate) -> int:
    """Bytes that may pass at once: what the rate brings in a millisecond, and no less than the kernel's largest
    segment (64 KiB and headers), which would otherwise be cut into packets by the CPUs that train."""
    return max(2**17, rate // 8000)


def _run(command: str) -> None:
    # In a session of its own: a Ctrl-C is for fsbench, which cleans up with these same tools.
    done = subprocess.run(command.split(), capture_output=True, text=True, start_new_session=True)
    if done.returncode:
        answer = one_line(done.stderr) or f"exit code {done.returncode}"
        raise Unsupported(f"{command}: {answer}")


def _remove(names: Iterable[str]) -> None:
    """Cables go with either of their ends, and the bridge with its namespace."""
    for name in names:
        # Two processes may find the same stale one: who comes second has nothing left to do. And stale ones of root's
        # are none of anyone else's business.
        with contextlib.suppress(Unsupported, OSError):
            _run(f"ip netns delete {name}")


def _owned() -> list[tuple[str, int]]:
    """Namespaces of any fsbench, each with the process that made it."""
    paths = _NAMESPACES.iterdir() if _NAMESPACES.exists() else ()
    return [(path.name, int(match[1])) for path in paths if (match := _OWNED.match(path.name))]

"""Ranks as processes of this machine, started by torch's elastic launcher."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from fsbench.launch import links
from fsbench.launch.cluster import Cluster, Link
from fsbench.options import BitRate, rate_text

MOST_RANKS_A_CORE = 16
"""More processes than this would only push each other out of memory."""
_SLOWEST_LINK = BitRate(10**6)
_FASTEST_LINK = BitRate(10**12)


def most_processes() -> int:
    """Ranks and servers that this machine may have."""
    return MOST_RANKS_A_CORE * (os.cpu_count() or 1)


class Local(Cluster):
    """Ranks on this machine: gloo over loopback or an emulated link on CPU, NCCL where there is a GPU for each rank.

    With `link`, hosts are network namespaces that reach each other at that rate only (see `fsbench.launch.links`).
    Such ranks train on CPU: NCCL would go around the link. They meet in the run's folder and beat there, so that
    the link carries nothing but their exchanges. Each server process is one more host.
    """

    serves = True

    @dataclass(frozen=True)
    class Options:
        """`ranks`: how many processes. `threads`: torch threads of each. `link`: the rate at which a host sends and
        receives, `400mbit`. `hosts`: how many hosts share the ranks in equal parts; one for each rank if not given."""

        ranks: int = 2
        threads: int = 1
        link: BitRate | None = None
        hosts: int | None = None

        def __post_init__(self) -> None:
            if self.ranks < 1:
                raise ValueError(f"ranks={self.ranks}: at least 1")
            if self.ranks > (most := most_processes()):
                raise ValueError(f"ranks={self.ranks}: at most {most} on this machine, {MOST_RANKS_A_CORE} a core")
            if self.threads < 1:
                raise ValueError(f"threads={self.threads}: at least 1")
            if self.link is not None:
                self._check_link(self.link)
            elif self.hosts is not None:
                raise ValueError(f"hosts={self.hosts}: hosts are told apart by the link between them; add link=RATE")

        def _check_link(self, rate: BitRate) -> None:
            hosts = self.ranks if self.hosts is None else self.hosts
            if rate < _SLOWEST_LINK:
                raise ValueError(f"link={rate_text(rate)}: at least {rate_text(_SLOWEST_LINK)}")
            if rate > _FASTEST_LINK:
                raise ValueError(f"link={rate_text(rate)}: at most {rate_text(_FASTEST_LINK)}")
            if not 2 <= hosts <= links.MOST_HOSTS:
                raise ValueError(f"a link is between hosts: 2 to {links.MOST_HOSTS} of them, not {hosts}")
            if self.ranks % hosts:
                raise ValueError(f"hosts={hosts}: {self.ranks} ranks are no equal parts on {hosts} hosts")

    options: Options

    @property
    def most_processes(self) -> int:
        return most_processes()

    @property
    def ranks(self) -> int:
        return self.options.ranks

    @property
    def hosts(self) -> int:
        return self.options.hosts or self.ranks if self.options.link else 1

    @property
    def link(self) -> Link | None:
        rate = self.options.link
        return Link(links.INTERFACE, rate, self.ranks // self.hosts) if rate else None

    def describe(self) -> str:
        text = f"{self.ranks} local ranks, {self.options.threads} torch thread each"
        return f"{text}, {self.hosts} hosts on a link of {rate_text(self.link.bits_per_s)}" if self.link else text

    def requirements(self) -> str | None:
        return links.why_not(self.hosts, self.link.bits_per_s) if self.link else None

    def open(self, servers: int) -> AbstractContextManager[None]:
        return links.network(self.hosts + servers, self.link.bits_per_s) if self.link else contextlib.nullcontext()

    def command(self, spec_file: Path, servers: int) -> Sequence[str]:
        # Not `--standalone`, whose store listens on every interface of the machine, for anyone to write to: this one is
        # a file beside the order, where the ranks meet as well.
        return [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--local-addr=127.0.0.1"),
            *("--rdzv-backend=c10d", "--rdzv-conf=store_type=file", f"--rdzv-endpoint={spec_file.parent / 'launcher'}"),
            f"--nproc-per-node={self.ranks + servers}",
            "--max-restarts=0",
            "--no-python",
            *(links.enter_host(self.ranks, self.link.ranks_a_host) if self.link else ()),
            sys.executable,
            "-m",
            "fsbench.train.rank",
            str(spec_file),
        ]

    def environment(self) -> Mapping[str, str]:
        threads = str(self.options.threads)
        # glibc gives large blocks back to the kernel at every free: a third of the CPU time would go into page
        # faults, and unevenly. With these it keeps them, as torch's caching allocator does on GPUs.
        keep_memory = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**33)}
        network = {"GLOO_SOCKET_IFNAME": "lo"}
        if self.link:
            network = {"GLOO_SOCKET_IFNAME": self.link.interface, "CUDA_VISIBLE_DEVICES": ""}
        # Else the launcher opens another store for the ranks to share, on every interface again.
        no_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, **network, **no_store, **keep_memory}

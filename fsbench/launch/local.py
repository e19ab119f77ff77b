"""Ranks as processes of this machine, started by torch's elastic launcher."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsbench.launch.cluster import Cluster


class Local(Cluster):
    """Ranks on this machine: gloo over loopback on CPU, NCCL where there is a GPU for each rank."""

    @dataclass(frozen=True)
    class Options:
        """`ranks`: how many processes. `threads`: torch threads of each."""

        ranks: int = 2
        threads: int = 1

        def __post_init__(self) -> None:
            if self.ranks < 1:
                raise ValueError(f"ranks={self.ranks}: at least 1")
            if self.threads < 1:
                raise ValueError(f"threads={self.threads}: at least 1")

    options: Options

    @property
    def ranks(self) -> int:
        return self.options.ranks

    def describe(self) -> str:
        return f"{self.ranks} local ranks, {self.options.threads} torch thread each"

    def command(self, spec_file: Path) -> Sequence[str]:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
        return [
            *launcher,
            f"--nproc-per-node={self.ranks}",
            "--max-restarts=0",
            "--no-python",
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
        return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "GLOO_SOCKET_IFNAME": "lo", **keep_memory}

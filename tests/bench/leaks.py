"""Does a session of many runs leave something behind a run? `python -m tests.bench.leaks [--runs 100] [--toy]`.

Runs as many cells one after another in this process, as `fsbench run` does, and prints what the process holds after
each tenth. Exit code 1 if anything grew. `--toy`: ranks that train nothing, a few a second; else real ones.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import tracemalloc
from dataclasses import astuple, dataclass
from pathlib import Path

from tabulate import tabulate

from fsbench.launch.session import run_session
from fsbench.matrix import Cell, RunSpec, run_id
from fsbench.results.store import ResultSet
from tests import support
from tests.fakes import install
from tests.sessions import PLUGINS

WARM_UP = 4
"""Runs after which whatever is made once has been made."""
MOST_KIB_A_RUN = 8.0
TOY = "leak-toy"


@dataclass(frozen=True)
class Held:
    """What this process holds. `python_kib`: allocated by Python; `resident_mib` moves with the allocator's habits."""

    python_kib: float
    resident_mib: float
    threads: int
    files: int
    shared_memory: int
    temporary: int


def held() -> Held:
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return Held(
        python_kib=tracemalloc.get_traced_memory()[0] / 1024,
        resident_mib=int(status["VmRSS"].split()[0]) / 1024,
        threads=int(status["Threads"]),
        files=len(os.listdir("/proc/self/fd")),
        shared_memory=len(os.listdir("/dev/shm")),
        temporary=len(os.listdir(tempfile.gettempdir())),
    )


class Watched:
    """A result set that looks at the process after each record."""

    def __init__(self, result_set: ResultSet) -> None:
        self.folder = result_set.folder
        self.seen: list[Held] = []
        self.statuses: list[str] = []
        self._append = result_set.append

    def append(self, record: dict) -> None:
        self._append(record)
        self.statuses.append(record["status"])
        self.reasons = [record["reason"]]
        del record
        self.seen.append(held())


def cells(count: int, cluster: str) -> list[Cell]:
    workload = support.with_options(support.TINY_LONG, eval_users=40)
    return [Cell(workload, cluster, "naive", "plain", "backend", f"fr-ma:every={i + 1}") for i in range(count)]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--toy", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        site = Path(name, "site")
        tempfile.tempdir = str(Path(name, "tmp"))  # ours alone, so that what is left there can be counted
        Path(tempfile.tempdir).mkdir()
        install(site, "leaks", {"clusters": {TOY: PLUGINS["clusters"]["toy"]}})
        sys.path.insert(0, str(site))
        runs = [
            RunSpec(run_id(cell, 1, 1), cell, 1, 1, 4, 120)
            for cell in cells(asked.runs, TOY if asked.toy else "local:ranks=2")
        ]
        tracemalloc.start()
        watched = Watched(ResultSet.create(Path(name, "set"), {}))
        run_session(runs, watched, None, quiet=True)  # type: ignore[arg-type]
    return report(watched)


def report(watched: Watched) -> int:
    seen = watched.seen
    every = max(1, len(seen) // 10)
    shown = [(number, *astuple(now)) for number, now in enumerate(seen, start=1) if number % every == 0]
    print(tabulate(shown, headers=["run", *Held.__dataclass_fields__], floatfmt=".1f"))
    if set(watched.statuses) != {"ok"}:
        print(f"not all runs are ok: {watched.reasons[-1]}")
        return 1
    first, last = seen[min(WARM_UP, len(seen)) - 1], seen[-1]
    a_run = (last.python_kib - first.python_kib) / max(1, len(seen) - WARM_UP)
    counts = ("threads", "files", "shared_memory", "temporary")
    grown = [name for name in counts if getattr(last, name) > getattr(first, name)]
    grown += ["python_kib"] if a_run > MOST_KIB_A_RUN else []
    print(f"Python memory: {a_run:+.2f} KiB a run; " + (f"grown: {', '.join(grown)}" if grown else "flat"))
    return int(bool(grown))


if __name__ == "__main__":
    sys.exit(main())

"""Whole sessions through the command line, in processes of their own: how tests start them and see what they left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from fsbench.launch.system import state_of
from tests import fakes, support
from tests.mutations.catalogue import ROOT

TINY = support.TINY_LONG.replace("eval_users=150", "eval_users=40")
PLUGINS = {
    "sharding": {
        "faulty": "tests.faulty:Faulty",
        "elsewhere": "tests.faulty:Elsewhere",
        "parent": "tests.faulty:Parent",
        "stranger": "tests.faulty:Stranger",
    },
    "embedding": {"faulty-tables": "tests.faulty:FaultyTables"},
    "collectives": {"broken-shadow": "tests.faulty:BrokenShadow"},
    "sync": {"broken-forward": "tests.faulty:BrokenForward", "broken-worker": "tests.faulty:BrokenWorker"},
    "clusters": {"bare": "tests.toy:Bare", "toy": "tests.toy:Toy"},
}
Environment = Mapping[str, str]


def make_environment(folder: Path) -> dict[str, str]:
    """The plugins of tests, and a temporary folder of its own for every process, all under `folder`."""
    fakes.install(folder / "site", "odd-plugins", PLUGINS)
    (folder / "tmp").mkdir()
    path = os.pathsep.join(filter(None, (str(folder / "site"), str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder / "tmp"), "ODD_PIDS": str(folder / "pids")}


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    return make_environment(tmp_path)


def command(out: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "fsbench", "run", "--workload", TINY, "--out", str(out), *arguments]


def run(out: Path, environment: Environment, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(out, *arguments), env=environment, capture_output=True, text=True)


def all_records(out: Path) -> list[dict]:
    """In the order in which they were written."""
    return list(map(json.loads, (out / "runs.jsonl").read_text().splitlines()))


def records(out: Path) -> dict[str, dict]:
    """By sharding; of several, the last."""
    return {record["cell"]["sharding"]: record for record in all_records(out)}


def log_of(out: Path, record: dict) -> str:
    """The log that was kept of a run."""
    return (out / "logs" / f"{record['run_id']}.txt").read_text()


def processes(environment: Environment) -> dict[int, str]:
    """Command lines, by number, of processes that a session of this environment has started, and of its own."""
    mark = f"TMPDIR={environment['TMPDIR']}".encode()
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if any(variable.startswith(mark) for variable in variables):
            found[int(entry.name)] = line
    return found


def ranks(environment: Environment) -> list[int]:
    """Those of them that are ranks."""
    return [pid for pid, line in processes(environment).items() if "fsbench.train.rank" in line.split(" torch.")[0]]


def janitor(environment: Environment) -> int:
    return next(pid for pid, line in processes(environment).items() if "fsbench.launch.leftovers" in line)


def left(environment: Environment) -> list[str]:
    """What a session that is over should have taken along: its processes, its strategies' and its temporary files."""
    files = map(str, Path(environment["TMPDIR"]).iterdir())
    return [*processes(environment).values(), *(f"process {pid}" for pid in children(environment)), *files]


def children(environment: Environment) -> list[int]:
    """Living processes that the strategy `parent` has started."""
    pids = Path(environment["ODD_PIDS"])
    known = map(int, pids.read_text().split()) if pids.exists() else ()
    return [pid for pid in known if state_of(pid) != "gone"]


def wait_until(condition, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)  # how often to look; nothing depends on its length


def training(environment: Environment) -> bool:
    """Whether a rank of a run has begun to train."""
    beats = Path(environment["TMPDIR"]).glob("fsbench-*/heartbeat-0")
    return any(b" train" in beat.read_bytes() for beat in beats)

"""Imports a plugin in a process of its own, with a time limit: whatever it does there, it does to nobody else.

A plugin may hang, exit, crash or print when it is imported. The process therefore leaves its verdict in a file, its
output goes to another, and all that it started is killed with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fsbench.errors import FsbenchError, UserError
from fsbench.launch.process import die_with_parent
from fsbench.launch.system import kill_run
from fsbench.plugins import FoundPlugin, find_plugin, load_plugin

LIMIT_S = 60.0
_HEAVY = ("torch",)
_OURS = "fsbench"


@dataclass(frozen=True)
class Probe:
    """What importing a plugin did. `fault`: why it cannot be used, or None. `heavy`: what it imported of that which
    takes seconds. `printed`: its output. `threads`: names of those that it started."""

    fault: str | None
    heavy: tuple[str, ...] = ()
    printed: str = ""
    threads: tuple[str, ...] = ()


def probe(found: FoundPlugin, limit_s: float | None = None) -> Probe:
    """Imports a plugin and checks its contract, as a run would, in a process of its own. `limit_s`: `LIMIT_S`."""
    try:
        find_plugin(found.kind, found.name)
    except UserError as error:
        return Probe(str(error))
    with tempfile.TemporaryDirectory(prefix="fsbench-probe-") as folder:
        ended = _import(found, Path(folder), LIMIT_S if limit_s is None else limit_s)
        printed = (Path(folder) / "output").read_text(errors="replace")
        verdict = _read(Path(folder) / "verdict")
    if verdict is None:
        return Probe(f"{found}: {ended}", printed=printed)
    return Probe(verdict["fault"], tuple(verdict["heavy"]), printed, tuple(verdict["threads"]))


def probe_all(plugins: Iterable[FoundPlugin]) -> dict[FoundPlugin, Probe]:
    """Several at once, one a core."""
    found = list(plugins)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        return dict(zip(found, pool.map(probe, found), strict=True))


def import_faults(plugins: Iterable[FoundPlugin]) -> dict[FoundPlugin, str]:
    """Why plugins cannot be imported, before this process tries: whatever they do would be done to it. Ours are not
    looked at, nor what is imported already."""
    strangers = [one for one in plugins if one.distribution != _OURS and one.module not in sys.modules]
    return {plugin: done.fault for plugin, done in probe_all(strangers).items() if done.fault}


def _import(found: FoundPlugin, folder: Path, limit_s: float) -> str:
    """Runs this module as a program; returns how that ended, for when it leaves no verdict."""
    command = [sys.executable, "-m", "fsbench.probe", found.kind, found.name, str(folder / "verdict")]
    # What is importable here must be importable there, and nothing else.
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "TMPDIR": str(folder)}
    with open(folder / "output", "wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        exit_code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return f"not imported after {limit_s:g} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kill_run(folder)
    if exit_code < 0:
        return f"importing it ended with {signal.Signals(-exit_code).name}"
    return f"importing it ended the process, exit code {exit_code}"


def _read(verdict: Path) -> dict | None:
    try:
        return json.loads(verdict.read_text())
    except (OSError, ValueError):
        return None


def _main(kind: str, name: str, verdict: str) -> None:
    die_with_parent()
    fault = None
    try:
        load_plugin(kind, name)
    except FsbenchError as error:
        fault = str(error)
    heavy = [name for name in _HEAVY if name in sys.modules]
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    Path(verdict).write_text(json.dumps({"fault": fault, "heavy": heavy, "threads": threads}))
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    # At once: threads that the import started, and whatever it registered to run at exit, were not asked for.
    os._exit(0)


if __name__ == "__main__":
    _main(*sys.argv[1:])

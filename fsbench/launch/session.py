"""Executes runs one after another, each in fresh processes, and records each as it ends."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fsbench.launch.cluster import Cluster
from fsbench.launch.handover import Order, RankError, read_errors, read_kind, read_outcome
from fsbench.launch.heartbeat import Beat
from fsbench.launch.process import Ended, run_to_end
from fsbench.launch.progress import Progress
from fsbench.matrix import RunSpec
from fsbench.options import Spec
from fsbench.plugins import create
from fsbench.results.schema import make_record
from fsbench.results.store import ResultSet

_EXIT_CODE = re.compile(r"^\s*rank\s*: (\d+) .*\n\s*exitcode\s*: (-?\d+)", re.MULTILINE)


def run_session(runs: Sequence[RunSpec], result_set: ResultSet, data_dir: Path | None, quiet: bool) -> None:
    """Runs everything and appends each record as its run ends.

    KeyboardInterrupt propagates after the current run's processes are gone; finished runs stay recorded.
    """
    with Progress(len(runs), quiet) as progress:
        for run in runs:
            progress.begin(str(run.cell))
            record = execute(run, data_dir, result_set.folder, progress)
            result_set.append(record)
            progress.end(record["status"], record["reason"])


def execute(run: RunSpec, data_dir: Path | None, log_folder: Path, progress: Progress) -> dict[str, Any]:
    """One run in fresh processes; returns its record. The log of a run that fails is kept under `log_folder/logs`."""
    cluster: Cluster = create("clusters", Spec.parse(run.cell.cluster))
    started = datetime.now(UTC).isoformat(timespec="seconds")
    if reason := cluster.requirements():
        return make_record(run, kind="cpu", status="unsupported", started=started, wall_s=0.0, reason=reason)
    _remove_stale_folders()
    with tempfile.TemporaryDirectory(prefix=f"fsbench-{os.getpid()}-") as name, cluster.open():
        folder = Path(name)
        command = cluster.command(_order(run, data_dir).write(folder))
        # torch's launcher leaves temporary folders behind; here they go with ours.
        environment = {**cluster.environment(), "TMPDIR": name}
        ended = run_to_end(command, environment, folder, cluster.ranks, run.time_limit_s, progress.update)
        outcome = read_outcome(folder) if ended.exit_code == 0 else None
        if outcome is None:
            log = (folder / "log.txt").read_text(errors="replace")
            status, reason = explain(ended, read_errors(folder), run.time_limit_s, log)
            if status != "unsupported":
                reason = f"{reason} (log: {_keep_log(folder / 'log.txt', log_folder, run.run_id)})"
            outcome = {"status": status, "reason": reason}
        timing: dict[str, Any] = {"started": started, "wall_s": round(ended.wall_s, 3)}
        return make_record(run, kind=read_kind(folder), **timing, **{"status": "ok", **outcome})


def _remove_stale_folders() -> None:
    """What a killed fsbench left: its folders carry its process number."""
    for folder in Path(tempfile.gettempdir()).glob("fsbench-*-*"):
        pid = folder.name.split("-")[1]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _order(run: RunSpec, data_dir: Path | None) -> Order:
    return Order(
        cell=dataclasses.asdict(run.cell),
        seed=run.seed,
        steps=run.steps or create("workloads", Spec.parse(run.cell.workload)).default_steps,
        time_limit_s=run.time_limit_s,
        data_dir=str(data_dir) if data_dir else None,
    )


def explain(ended: Ended, errors: Sequence[RankError], time_limit_s: float, log: str = "") -> tuple[str, str]:
    """Status and reason of a run that left no outcome. `log`: what the launcher and the ranks printed."""
    if ended.timed_out:
        return "timeout", f"time limit of {time_limit_s:g} s reached; {_last_words(ended.beats)}"
    if errors and not errors[0].lost_peer:
        first = errors[0]
        message = first.message.splitlines()[0] if first.message else "no message"
        where = "" if first.kind == "unsupported" else f"rank {first.rank}, {first.phase}: "
        return first.kind, where + message
    told = {error.rank for error in errors}
    for rank, beat in enumerate(ended.beats):
        if beat is not None and beat.phase != "done" and rank not in told:
            return "failed", f"rank {rank}, {beat}: {how_ended(exit_codes(log).get(rank))}"
    if len(told) == len(ended.beats) and errors[0].kind == "stopped":
        return "failed", f"rank {errors[0].rank}, {errors[0].phase}: stopped by SIGTERM before any rank had failed"
    return "failed", f"ended with exit code {ended.exit_code} and no error; {_last_words(ended.beats)}"


def exit_codes(log: str) -> dict[int, int]:
    """By rank, as torch's launcher lists them when a run failed; negative is the number of a signal."""
    return {int(rank): int(code) for rank, code in _EXIT_CODE.findall(log)}


def how_ended(exit_code: int | None) -> str:
    """What to say of a rank that left no word."""
    if exit_code is None or exit_code >= 0:
        return "ended without a word" + (f", exit code {exit_code}" if exit_code else "")
    name = signal.Signals(-exit_code).name
    return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


def _last_words(beats: Sequence[Beat | None]) -> str:
    return ", ".join(f"rank {rank}: {beat or 'not started'}" for rank, beat in enumerate(beats))


def _keep_log(log: Path, folder: Path, run_id: str) -> str:
    kept = folder / "logs" / f"{run_id}.txt"
    kept.parent.mkdir(exist_ok=True)
    shutil.copyfile(log, kept)
    return f"logs/{kept.name}"

"""Executes runs one after another, each in fresh processes, and records each as it ends."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fsbench.axes import AXES
from fsbench.errors import FsbenchError, Unsupported
from fsbench.launch.cluster import Cluster
from fsbench.launch.explain import explain
from fsbench.launch.handover import Order, read_errors, read_kind, read_outcome
from fsbench.launch.heartbeat import Beats
from fsbench.launch.interrupts import Interrupts
from fsbench.launch.keep import keep_log, tail
from fsbench.launch.leftovers import janitor
from fsbench.launch.process import Ended, run_to_end
from fsbench.launch.progress import Progress
from fsbench.launch.watchdog import Limits
from fsbench.matrix import RunSpec
from fsbench.options import Spec
from fsbench.plugins import create, load_plugin
from fsbench.results.schema import make_record
from fsbench.results.store import ResultSet
from fsbench.roles import member_names, server_processes


def run_session(runs: Sequence[RunSpec], result_set: ResultSet, data_dir: Path | None, quiet: bool) -> None:
    """Runs everything and appends each record as its run ends.

    KeyboardInterrupt propagates after the current run's processes are gone; finished runs stay recorded.
    """
    with Interrupts() as interrupts, janitor(), Progress(len(runs), quiet) as progress:
        for run in runs:
            interrupts.check()
            progress.begin(str(run.cell))
            record = Execution(run, data_dir, result_set.folder, progress.update, interrupts).record()
            result_set.append(record)
            progress.end(record["status"], record["reason"])


@dataclass(frozen=True)
class Execution:
    """One run in fresh processes. The log of a run that fails is kept under `log_folder/logs`."""

    run: RunSpec
    data_dir: Path | None
    log_folder: Path
    on_poll: Callable[[Beats], None]
    interrupts: Interrupts

    def record(self) -> dict[str, Any]:
        """What is to be recorded of it, however it ends.

        Raises:
            KeyboardInterrupt: after its processes are gone.
        """
        started = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            return self._execute(started)
        except Unsupported as error:
            status, reason = "unsupported", str(error)
        except (FsbenchError, OSError) as error:
            # No room for the order, no process to be had: an obstacle to this run, and perhaps not to the next.
            status, reason = "failed", f"could not be run: {getattr(error, 'strerror', None) or error}"
        except Exception as error:
            # A cluster may be anyone's plugin.
            kept = keep_log(traceback.format_exc(), self.log_folder, self.run.run_id)
            status, reason = "failed", f"could not be run: {type(error).__name__}: {error} ({kept})"
        return make_record(self.run, kind=self._kind(), status=status, reason=reason, started=started, wall_s=0.0)

    def _kind(self) -> str:
        """Of the cluster; a real one where that is not to be had."""
        try:
            return load_plugin("clusters", Spec.parse(self.run.cell.cluster).name).cls.kind
        except FsbenchError:
            return Cluster.kind

    def _execute(self, started: str) -> dict[str, Any]:
        cluster: Cluster = create("clusters", Spec.parse(self.run.cell.cluster))
        if reason := cluster.requirements():
            raise Unsupported(reason)
        order = self._order()
        begun = time.monotonic()
        if (outcome := cluster.simulate(order, self.interrupts.check)) is not None:
            took = round(time.monotonic() - begun, 3)
            return make_record(self.run, started=started, wall_s=took, **{"status": "ok", **outcome})
        servers = server_processes({axis: create(axis, order.strategy(axis)).roles() for axis in AXES})
        with tempfile.TemporaryDirectory(prefix=f"fsbench-{os.getpid()}-") as name, cluster.open(len(servers)):
            folder = Path(name)
            command = cluster.command(order.write(folder), len(servers))
            names = member_names(cluster.ranks, servers)
            limits = Limits(self.run.time_limit_s, self.run.stall_limit_s)
            ended = run_to_end(command, cluster.environment(), folder, names, limits, self._poll, self.interrupts.hurry)
            outcome = (read_outcome(folder) if ended.exit_code == 0 else None) or self._failure(ended, folder)
            timing: dict[str, Any] = {"started": started, "wall_s": round(ended.wall_s, 3)}
            return make_record(self.run, kind=read_kind(folder), **timing, **{"status": "ok", **outcome})

    def _poll(self, beats: Beats) -> None:
        self.interrupts.check()
        self.on_poll(beats)

    def _failure(self, ended: Ended, folder: Path) -> dict[str, Any]:
        """Status and reason of a run that left no outcome."""
        log = tail(folder / "log.txt")
        status, reason = explain(ended, read_errors(folder), log)
        if status != "unsupported":
            scene = ended.cut.scene.report() if ended.cut and ended.cut.scene else ""
            reason = f"{reason} ({keep_log(log + scene, self.log_folder, self.run.run_id)})"
        return {"status": status, "reason": reason}

    def _order(self) -> Order:
        run = self.run
        return Order(
            cell=dataclasses.asdict(run.cell),
            seed=run.seed,
            steps=run.steps or create("workloads", Spec.parse(run.cell.workload)).default_steps,
            time_limit_s=run.time_limit_s,
            data_dir=str(self.data_dir) if self.data_dir else None,
        )

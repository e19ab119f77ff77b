"""Clusters that start faster than torch's launcher: `bare` with real ranks, `toy` with ranks that train nothing.

Toy ranks are real processes that go through the phases of a run, and have the faults that `TOY_FAULTS` names: a JSON
object of (fault, rank) by the strategies of a cell, `naive+plain+backend+allreduce`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from fsbench.axes import AXES
from fsbench.launch import handover
from fsbench.launch.heartbeat import PHASES, Heartbeat
from fsbench.launch.local import Local
from fsbench.results.schema import METRICS
from tests.faulty import fill

STEPS = 4
FAULTS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hang": signal.pause,
    "fill": lambda: fill(Path(os.environ["TOY_DISK"])),
}


class Bare(Local):
    """Real ranks without torch's launcher: nobody but the session looks after them."""

    module = "fsbench.train.rank"

    def command(self, spec_file, servers):
        return [sys.executable, "-m", "tests.toy", self.module, str(spec_file), str(self.ranks + servers)]


class Toy(Bare):
    """Ranks that train nothing."""

    module = "tests.toy"


def launch(module: str, order_file: str, ranks: int) -> int:
    """Starts the ranks and waits for all of them; the worst exit code."""
    command = [sys.executable, "-m", module, order_file]
    world = {**os.environ, "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    environments = [{**world, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    # As torch's launcher does, each in a process group of its own.
    started = [subprocess.Popen(command, env=environment, start_new_session=True) for environment in environments]
    return max(abs(process.wait()) for process in started)


def train(order_file: Path, rank: int) -> None:
    folder, order = order_file.parent, handover.Order.read(order_file)
    strategies = "+".join(order.cell[axis] for axis in AXES)
    fault, victim = json.loads(os.environ.get("TOY_FAULTS", "{}")).get(strategies, (None, None))
    heartbeat = Heartbeat(folder, rank)
    for phase in PHASES[1:-1]:
        heartbeat.beat(phase)
        for step in range(STEPS if phase == "train" else 0):
            heartbeat.beat(phase, step, STEPS)
            if fault and (step, rank) == (1, victim):
                FAULTS[fault]()
    if rank == 0:
        handover.write_outcome(folder, {"missing": dict.fromkeys(METRICS, "toys measure nothing")})
    heartbeat.beat("done")


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(Path(sys.argv[1]), int(os.environ["RANK"]))
    else:
        sys.exit(launch(sys.argv[1], sys.argv[2], int(sys.argv[3])))

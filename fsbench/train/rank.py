"""What one rank does, from process start to outcome: `python -m fsbench.train.rank ORDER_FILE`."""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from fsbench.axes import AXES, DEFAULTS
from fsbench.collect import recorder
from fsbench.errors import Unsupported
from fsbench.launch.handover import Order, write_error, write_kind, write_outcome
from fsbench.launch.heartbeat import Heartbeat
from fsbench.launch.process import die_with_parent
from fsbench.matrix import IGNORED
from fsbench.options import Spec
from fsbench.plugins import create
from fsbench.train.report import build_report
from fsbench.train.session import TrainingRun
from fsbench.train.trainer import Strategies, close_trainer, open_trainer


def main() -> None:
    die_with_parent()
    order_file = Path(sys.argv[1])
    folder = order_file.parent
    rank = int(os.environ["RANK"])
    heartbeat = Heartbeat(folder, rank)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    try:
        _run(Order.read(order_file), folder, rank, heartbeat)
    except BaseException as error:
        write_error(folder, rank, heartbeat.last, _kind(error), error)
        # Lane threads may sit in a collective that no peer will join: there is nothing to wait for.
        sys.stdout.flush()
        os._exit(1)


def _run(order: Order, folder: Path, rank: int, heartbeat: Heartbeat) -> None:
    ranks = int(os.environ["WORLD_SIZE"])
    timeout = timedelta(seconds=order.time_limit_s)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    device = _device()
    if rank == 0:
        write_kind(folder, "gpu" if device.type == "cuda" else "cpu")
    heartbeat.beat("data")
    workload = create("workloads", Spec.parse(order.cell["workload"]))
    workload.prepare(Path(order.data_dir) if order.data_dir else None, order.seed)
    strategies = Strategies(**{axis: create(axis, _spec(order, axis)) for axis in AXES})
    heartbeat.beat("rendezvous")
    recorder.register_backends()
    dist.init_process_group(recorder.GLOO, timeout=timeout)
    heartbeat.beat("tables")
    trainer = open_trainer(
        workload, strategies, rank=rank, ranks=ranks, device=device, seed=order.seed, timeout=timeout
    )
    finished = TrainingRun(trainer, order.steps, heartbeat).execute()
    heartbeat.beat("report")
    report = build_report(trainer, finished)
    if report is not None:
        write_outcome(folder, report)
    close_trainer(trainer)
    dist.destroy_process_group()
    heartbeat.beat("done")


def _spec(order: Order, axis: str) -> Spec:
    """An axis that the cell's strategies ignore still serves the loader: by its default."""
    text = order.cell[axis]
    return Spec.parse(DEFAULTS[axis] if text == IGNORED else text)


def _device() -> torch.device:
    """A GPU of its own for each rank, else the CPU."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        torch.cuda.set_device(local)
        return torch.device("cuda", local)
    return torch.device("cpu")


def _kind(error: BaseException) -> str:
    if isinstance(error, Unsupported):
        return "unsupported"
    memory = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "not enough memory" in str(error)
    return "oom" if memory else "failed"


if __name__ == "__main__":
    main()

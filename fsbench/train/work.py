"""What one rank does, from its order to the outcome."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from fsbench.axes import AXES
from fsbench.collect import recorder
from fsbench.launch.activity import Activity
from fsbench.launch.handover import Order, write_kind, write_outcome
from fsbench.launch.heartbeat import Heartbeat
from fsbench.options import Spec
from fsbench.plugins import create
from fsbench.train.agreement import facts, require_agreement
from fsbench.train.report import build_report
from fsbench.train.session import TrainingRun
from fsbench.train.trainer import Strategies, close_trainer, open_trainer


def work(order: Order, folder: Path, rank: int, heartbeat: Heartbeat) -> None:
    """Sets the cell up, runs it and, on rank 0, writes the outcome. Raises whatever goes wrong."""
    ranks = int(os.environ["WORLD_SIZE"])
    timeout = timedelta(seconds=order.time_limit_s)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    device = _device()
    if rank == 0:
        write_kind(folder, "gpu" if device.type == "cuda" else "cpu")
    heartbeat.beat("data")
    workload = create("workloads", Spec.parse(order.cell["workload"]))
    workload.prepare(Path(order.data_dir) if order.data_dir else None, order.seed)
    strategies = Strategies(**{axis: create(axis, order.strategy(axis)) for axis in AXES})
    heartbeat.beat("rendezvous")
    recorder.register_backends()
    # Ranks meet in the run's folder, which they share anyway: a store on the network would be traffic on the link.
    # Not by its URL, of which torch would take a space or an umlaut to be escapes.
    store = dist.FileStore(str(folder / "store"), ranks)
    store.set_timeout(timeout)
    dist.init_process_group(recorder.GLOO, store=store, rank=rank, world_size=ranks, timeout=timeout)
    activity = Activity(folder, rank)
    recorder.watch(dist.group.WORLD, "world", activity)
    require_agreement(facts(order, workload, strategies, device))
    heartbeat.beat("tables")
    trainer = open_trainer(
        workload,
        strategies,
        rank=rank,
        ranks=ranks,
        device=device,
        seed=order.seed,
        timeout=timeout,
        activity=activity,
    )
    link = create("clusters", Spec.parse(order.cell["cluster"])).link
    finished = TrainingRun(trainer, order.steps, heartbeat, link).execute()
    heartbeat.beat("report")
    report = build_report(trainer, finished)
    if report is not None:
        write_outcome(folder, report)
    close_trainer(trainer)
    dist.destroy_process_group()
    heartbeat.beat("done")


def _device() -> torch.device:
    """A GPU of its own for each rank, else the CPU."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        torch.cuda.set_device(local)
        return torch.device("cuda", local)
    return torch.device("cpu")

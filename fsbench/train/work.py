"""What one process of a run does: a rank, from its order to the outcome, or a server until all ranks have ended."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path

import torch
import torch.distributed as dist

from fsbench.axes import AXES
from fsbench.collect import recorder
from fsbench.collect.nvml import sampling
from fsbench.launch.activity import Activity
from fsbench.launch.handover import Order, write_kind, write_outcome
from fsbench.launch.heartbeat import SERVES, Heartbeat
from fsbench.options import Spec
from fsbench.plugins import create
from fsbench.roles import ServerProcess
from fsbench.train.agreement import facts, require_agreement, require_same, tell_facts
from fsbench.train.moved_by import watch_movers
from fsbench.train.report import Watched, build_report
from fsbench.train.serving import serve_ranks
from fsbench.train.session import TrainingRun
from fsbench.train.trainer import Strategies, close_trainer, open_trainer
from fsbench.workload import Workload


@dataclass(frozen=True)
class _Process:
    """One process of a run, set up. `number`: the servers' come after the ranks'."""

    order: Order
    folder: Path
    number: int
    heartbeat: Heartbeat
    strategies: Strategies
    workload: Workload

    @property
    def ranks(self) -> int:
        return int(os.environ["WORLD_SIZE"]) - len(self.strategies.servers)

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self.order.time_limit_s)

    @cached_property
    def device(self) -> torch.device:
        """A GPU of its own for each rank, else the CPU. A server says what the ranks have."""
        ranks_here = int(os.environ["LOCAL_WORLD_SIZE"]) - len(self.strategies.servers)
        on_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= ranks_here
        return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")

    @cached_property
    def store(self) -> dist.FileStore:
        """Where all meet: in the run's folder, which they share anyway; a store on the network would be traffic on the
        link. Not by its URL, of which torch would take a space or an umlaut to be escapes."""
        store = dist.FileStore(str(self.folder / "store"), int(os.environ["WORLD_SIZE"]))
        store.set_timeout(self.timeout)
        return store


def work(order: Order, folder: Path, number: int, heartbeat: Heartbeat) -> None:
    """Sets the process with that number up, and trains or serves. Raises whatever goes wrong."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    heartbeat.beat("data")
    strategies = Strategies(**{axis: create(axis, order.strategy(axis)) for axis in AXES})
    workload: Workload = create("workloads", Spec.parse(order.cell["workload"]))
    process = _Process(order, folder, number, heartbeat, strategies, workload)
    if number == 0:
        write_kind(folder, "gpu" if process.device.type == "cuda" else "cpu")
    workload.prepare(Path(order.data_dir) if order.data_dir else None, order.seed)
    if number < process.ranks:
        _train(process)
    else:
        _serve(process, strategies.servers[number - process.ranks])
    heartbeat.beat("done")


def _train(process: _Process) -> None:
    """On rank 0 it also writes the outcome."""
    order, rank, ranks = process.order, process.number, process.ranks
    if process.device.type == "cuda":
        torch.cuda.set_device(process.device)
    process.heartbeat.beat("rendezvous")
    recorder.register_backends()
    dist.init_process_group(recorder.GLOO, store=process.store, rank=rank, world_size=ranks, timeout=process.timeout)
    activity = Activity(process.folder, rank)
    recorder.watch(dist.group.WORLD, "world", activity)
    own = facts(order, process.workload, process.strategies, process.device)
    require_agreement(own)
    if rank == 0:
        require_same(own, process.store, process.strategies.servers)
    process.heartbeat.beat("tables")
    trainer = open_trainer(
        process.workload,
        process.strategies,
        rank=rank,
        ranks=ranks,
        device=process.device,
        seed=order.seed,
        timeout=process.timeout,
        store=process.store,
        activity=activity,
    )
    link = create("clusters", Spec.parse(order.cell["cluster"])).link
    with sampling(process.device) as sampler:
        finished = TrainingRun(trainer, order.steps, process.heartbeat, link).execute()
    moved = watch_movers(trainer, finished.floor.stop)
    process.heartbeat.beat("report")
    report = build_report(trainer, finished, Watched(sampler.samples(), moved))
    if report is not None:
        write_outcome(process.folder, report)
    close_trainer(trainer)
    dist.destroy_process_group()


def _serve(process: _Process, server: ServerProcess) -> None:
    order = process.order
    tell_facts(facts(order, process.workload, process.strategies, process.device), process.store, server)
    process.heartbeat.beat("tables")
    serve_ranks(
        getattr(process.strategies, server.axis),
        server,
        process.workload,
        ranks=process.ranks,
        number=process.number,
        seed=order.seed,
        store=process.store,
        timeout=process.timeout,
        activity=Activity(process.folder, process.number),
        on_poll=lambda answered: process.heartbeat.beat(SERVES, answered),
    )

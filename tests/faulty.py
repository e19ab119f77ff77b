"""Plugins with a fault to inject, for tests of whole runs: what goes wrong, on which rank, in which step."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fsbench.axes import Server, Sharding
from fsbench.errors import Unsupported
from fsbench_strategies.collectives.backend import Backend
from fsbench_strategies.embedding.parameter_server import ParameterServer
from fsbench_strategies.sync.allreduce import AllReduce
from fsbench_strategies.sync.averaged import AVERAGING
from fsbench_strategies.sync.none import NoSync

LONG = 86_399
"""Seconds."""


def raise_an_error() -> None:
    raise ValueError("rank 1 has had enough")


def raise_in_a_thread() -> None:
    threading.Thread(target=raise_an_error, name="busy", daemon=True).start()


def linger() -> None:
    threading.Thread(target=threading.Event().wait, name="lingering").start()


def hang() -> None:
    threading.Event().wait()


def hang_in_c() -> None:
    """No other thread of the process runs any more: the GIL is kept."""
    ctypes.PyDLL(None).sleep(LONG)


def take_all_memory() -> None:
    """Down to the last crumb of the address space."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + 2**28
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    hoard: list[bytearray] = []
    for size in (2**24, 2**20, 2**16, 2**12, 2**9, 2**6):
        while True:
            try:
                hoard.append(bytearray(size))
            except MemoryError:
                break
    hoard.append(bytearray(2**24))


def fill_the_disk() -> None:
    """That of the run's folder, to the last byte."""
    fill(Path(os.environ["TMPDIR"]))


def fill(folder: Path) -> None:
    with open(folder / "filler", "wb", buffering=0) as file:
        for size in (2**16, 2**12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass


FAULTS: dict[str, Callable[[], None]] = {
    "raise": raise_an_error,
    "thread": raise_in_a_thread,
    "linger": linger,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "leave": lambda: os._exit(0),
    "vanish": lambda: os._exit(7),
    "crash": lambda: ctypes.string_at(0),
    "hang": hang,
    "hold": hang_in_c,
    "hungry": take_all_memory,
    "fill": fill_the_disk,
}


class Faulty(Sharding):
    """Leaves samples where they are; in one step, on one rank, something goes wrong. Several faults, `stop+hold`, fall
    on consecutive ranks."""

    moves = False
    lookahead = 1

    @dataclass(frozen=True)
    class Options:
        """`how`: keys of `FAULTS`, or `early`: `rank` leaves before the ranks have met."""

        how: str
        rank: int = 1
        step: int = 3

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        if options.how == "early" and os.environ.get("RANK") == str(options.rank):
            os._exit(0)

    def assign(self, batch):
        victim = self.context.rank - self.options.rank
        if batch.step == self.options.step and 0 <= victim < len(faults := self.options.how.split("+")):
            FAULTS[faults[victim]]()
        return batch.source.astype("int64")


class Elsewhere(Sharding):
    """Finds out on the ranks that it cannot run."""

    def setup(self, context):
        raise Unsupported("needs a rank that was never built")

    def assign(self, batch):
        return batch.source.astype("int64")


class Parent(Sharding):
    """Starts two processes and forgets them: one in a session of its own, one in the rank's process group that knows
    nothing of the run. Their numbers go to `ODD_PIDS`. Its evidence is no JSON. `hang`: it never comes back."""

    moves = False
    lookahead = 1

    @dataclass(frozen=True)
    class Options:
        hang: bool = False

    options: Options

    def setup(self, context):
        super().setup(context)
        sleep = ["sleep", str(LONG)]
        started = [subprocess.Popen(sleep, start_new_session=True), subprocess.Popen(sleep, env={})]
        with open(os.environ["ODD_PIDS"], "a") as file:
            file.writelines(f"{process.pid}\n" for process in started)

    def assign(self, batch):
        if self.options.hang and batch.step == 3:
            hang()
        return batch.source.astype("int64")

    def evidence(self):
        return {"what": object()}


class Stranger(Sharding):
    """On rank 1 it is of another fsbench."""

    moves = False
    lookahead = 1

    def __init__(self, options=None) -> None:
        super().__init__(options)
        import fsbench

        if os.environ.get("RANK") == "1":
            fsbench.__version__ = "0.2.0"

    def assign(self, batch):
        return batch.source.astype("int64")


class BrokenForward(AllReduce):
    """The model's forward raises in step 3 of rank 1."""

    def attach(self, module):
        super().attach(module)
        self._forwards = 0
        module.register_forward_pre_hook(self._count)

    def _count(self, *_: object) -> None:
        self._forwards += 1
        if self._forwards == 4 and self.context.rank == 1:
            raise ArithmeticError("this forward goes nowhere")


class BrokenWorker(NoSync):
    """On rank 1 the second of several workers raises after its fourth step."""

    def attach(self, module):
        super().attach(module)
        self._calls = 0

    def after_step(self):
        super().after_step()
        self._calls += threading.current_thread().name == "worker-1"
        if self._calls == 4 and self.context.rank == 1:
            raise ArithmeticError("this worker is tired")


class BrokenShadow(Backend):
    """On rank 1, what the shadow thread sends is lost."""

    def all_reduce(self, lane, tensor, *, kind):
        if lane.name == AVERAGING.name and self.context.rank == 1:
            raise ArithmeticError("the shadow is gone")
        return super().all_reduce(lane, tensor, kind=kind)


class FaultyTables(ParameterServer):
    """On its server, in the middle of training, something goes wrong."""

    @dataclass(frozen=True)
    class Options(ParameterServer.Options):
        """`how`: a key of `FAULTS`, or `stranger`: the server is of another fsbench."""

        how: str = "raise"

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        import fsbench

        if options.how == "stranger" and os.environ.get("RANK") == "2":
            fsbench.__version__ = "0.2.0"

    def serve(self, context):
        fault = FAULTS.get(self.options.how, lambda: None)
        return FaultyServer(super().serve(context), fault)


class FaultyServer(Server):
    """As a sound one, but for one request of rank 0."""

    REQUEST = 7

    def __init__(self, sound: Server, fault: Callable[[], None]) -> None:
        self._sound, self._fault = sound, fault
        self._answered = 0

    def answer(self, rank, request, channel):
        self._answered += rank == 0
        if self._answered == self.REQUEST and rank == 0:
            self._fault()
        self._sound.answer(rank, request, channel)

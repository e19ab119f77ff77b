"""Strategies that break one promise each, otherwise sound: what the checks of `fsbench.testing` must find.

The module imports no torch, so that importing it breaks none.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import threading
from dataclasses import dataclass

import numpy as np

from fsbench.axes import DENSE, EXCHANGE, SHUFFLE, BatchMeta, DenseSync, Server, Sharding, TargetCounts
from fsbench_strategies.collectives.backend import Backend
from fsbench_strategies.embedding.plain import Plain
from fsbench_strategies.sync.allreduce import AllReduce
from fsbench_strategies.sync.fr_ma import ForegroundMA

BROKEN: dict[str, tuple[str, type, set[str], str]] = {}
"""By name: axis, class, the checks that must fail, and what one of them must say."""


def breaks(*checks: str, saying: str):
    """Registers a strategy with the checks that find it out."""

    def register(cls: type) -> type:
        axis = next(axis for axis, base in BASES.items() if issubclass(cls, base))
        BROKEN[cls.__name__.lower()] = (axis, cls, set(checks), saying)
        return cls

    return register


class Deal(Sharding):
    """Deals samples to ranks in turn."""

    lookahead = 1

    def assign(self, batch: BatchMeta):
        return np.arange(len(batch.source)) % batch.ranks


BASES = {"sharding": Sharding, "embedding": Plain, "collectives": Backend, "sync": DenseSync}


# Every axis


@breaks("declarations", saying="no docstring")
class Undescribed(Deal):
    pass


@breaks("declarations", saying="lookahead is 3; expected 0, 1 or 2")
class FarSighted(Deal):
    """Looks further ahead than the loader does."""

    lookahead = 3


@breaks("declarations", saying="uses is frozenset({'shuffling'})")
class UsesNothingKnown(Deal):
    """Uses an axis that does not exist."""

    uses = frozenset({"shuffling"})


@breaks("wrong options", saying="every=0 is accepted")
class Unchecked(Deal):
    """Divides by an option that may be 0."""

    @dataclass(frozen=True)
    class Options:
        every: int = 2

    def assign(self, batch: BatchMeta):
        return super().assign(batch) if batch.step // self.options.every >= 0 else None


@breaks("trains", saying="rank 1 of 2: ValueError: rank 1 has had enough in assign (broken.py")
class Failing(Deal):
    """Raises on rank 1 in step 2."""

    def assign(self, batch: BatchMeta):
        if batch.step == 2 and self.context.rank == 1:
            raise ValueError("rank 1 has had enough")
        return super().assign(batch)


class Hanging(Deal):
    """Never comes back on rank 1 in step 2."""

    def assign(self, batch: BatchMeta):
        if batch.step == 2 and self.context.rank == 1:
            threading.Event().wait()
        return super().assign(batch)


@breaks("trains", saying="rank 1 of 2: the process died, killed by SIGSEGV")
class Crashing(Deal):
    """Takes rank 1 down with it."""

    def assign(self, batch: BatchMeta):
        if batch.step == 2 and self.context.rank == 1:
            os.kill(os.getpid(), 11)
        return super().assign(batch)


@breaks("trains", saying="the dense gradient of step 4 has values that are not finite")
class NotANumber(AllReduce):
    """Loses the last gradient."""

    def before_step(self) -> None:
        super().before_step()
        if len(self.syncs()) == 5:
            self._flat.fill_(float("nan"))


@breaks("trains", saying="evidence() cannot be recorded: TypeError")
class Inexpressible(Deal):
    """Its evidence is no JSON."""

    def evidence(self):
        return {"what": object()}


@breaks("repeats", saying="two trainings differ in")
class Drifting(Plain):
    """Adds a little noise to every row, another each time."""

    def lookup(self, step, ids):
        import torch

        noise = torch.Generator()
        noise.seed()
        rows = super().lookup(step, ids)
        return {name: r + 1e-13 * torch.rand(r.shape, generator=noise, dtype=r.dtype) for name, r in rows.items()}


@breaks("equals reference", saying="the dense gradient of step 1 differs from the reference's by")
class WronglyScaled(Plain):
    """Divides gradients by the target count of one rank."""

    def update(self, step, counts):
        super().update(step, TargetCounts(counts.local, counts.local))


@breaks("an empty rank", saying="ValueError: no rows")
class NeedsSamples(Plain):
    """Cannot look up nothing."""

    def lookup(self, step, ids):
        if not all(map(len, ids.values())):
            raise ValueError("no rows")
        return super().lookup(step, ids)


@breaks("a giant sample", saying="ValueError: too many rows")
class NarrowMinded(Plain):
    """Has a buffer that a long history does not fit into."""

    def lookup(self, step, ids):
        if any(len(wanted) > 1000 for wanted in ids.values()):
            raise ValueError("too many rows")
        return super().lookup(step, ids)


@breaks("same operations", saying="lane exchange, operation 12: rank 0 issued all_to_all")
class Talkative(Plain):
    """Rank 1 issues an exchange of nothing, in which nobody else takes part."""

    def update(self, step, counts):
        import torch

        super().update(step, counts)
        if self.context.rank == 1:
            nothing, lane = [0] * self.context.ranks, self.context.lanes[EXCHANGE.name]
            empty = torch.zeros(0)
            self.context.collectives.all_to_all(lane, empty, nothing, nothing, largest_split=0, kind="ids").wait()


@breaks("declared services", saying="it takes lane shuffle, which `lanes` does not declare")
class Trespassing(Plain):
    """Takes another strategy's lane."""

    def update(self, step, counts):
        super().update(step, counts)
        self.context.lanes[SHUFFLE.name].submit(lambda: None, kind="ids").wait()


@breaks("declared services", saying="`uses` does not name collectives")
class Undeclared(Plain):
    """Uses the collectives and does not say so."""

    uses = frozenset()


@breaks("declared services", saying="made 1 process groups besides its lanes'")
class Grouping(Plain):
    """Makes a group of its own, which nobody records."""

    def build(self, tables) -> None:
        import torch.distributed as dist

        super().build(tables)
        self._group = dist.new_group(backend="gloo")


@breaks("resumes", saying="differs from that of an unbroken training")
class Forgetful(AllReduce):
    """Before its first step it goes back to the parameters that it was attached to."""

    def attach(self, module) -> None:
        super().attach(module)
        self._initial = {name: tensor.clone() for name, tensor in module.state_dict().items()}

    def before_step(self) -> None:
        if not self.syncs():
            self._module.load_state_dict(self._initial)
        super().before_step()


@breaks("teardown", saying="at the end: left thread left-behind")
class LeavesThread(Deal):
    """Starts a thread that never ends."""

    def setup(self, context) -> None:
        super().setup(context)
        threading.Thread(target=threading.Event().wait, name="left-behind", daemon=True).start()


@breaks("teardown", saying="(sleep 86398)")
class LeavesProcess(Deal):
    """Starts a process and forgets it."""

    def setup(self, context) -> None:
        super().setup(context)
        self._child = subprocess.Popen(["sleep", "86398"])


@breaks("teardown", saying="(sleep 86396)")
class LeavesDaemon(Deal):
    """Starts a process of nobody's, in a session of its own."""

    def setup(self, context) -> None:
        super().setup(context)
        subprocess.run(["sh", "-c", "setsid sleep 86396 &"], check=True)


@breaks("teardown", saying="left open socket:[")
class LeavesSocket(Deal):
    """Opens a socket and never closes it."""

    opened: list = []  # noqa: RUF012

    def setup(self, context) -> None:
        super().setup(context)
        self.opened.append(socket.socket())


@breaks("teardown", saying="in the folder for temporary files")
class LeavesFile(Deal):
    """Writes a temporary file and does not remove it."""

    def setup(self, context) -> None:
        super().setup(context)
        descriptor, _ = tempfile.mkstemp()
        os.close(descriptor)


@breaks("teardown", saying="after a failed step: left thread half-way")
class LeavesThreadWhenInterrupted(AllReduce):
    """Ends its thread where all is well, in `flush`, and not in `close`."""

    def attach(self, module) -> None:
        super().attach(module)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._stop.wait, name="half-way", daemon=True)
        self._thread.start()

    def flush(self) -> None:
        self._stop.set()
        self._thread.join()


# Sharding


@breaks("partition", saying="no sample: assign returned int32[0]; expected int64[0]")
class Narrow(Deal):
    """Saves memory."""

    def assign(self, batch: BatchMeta):
        return super().assign(batch).astype(np.int32)


@breaks("partition", saying="no cost: assign returned ranks 2 to 2; valid: 0 to 1")
class Overflowing(Deal):
    """Runs out of ranks where nothing costs anything."""

    def assign(self, batch: BatchMeta):
        if len(batch.costs) and not batch.costs.any():
            return np.full(len(batch.costs), batch.ranks)
        return super().assign(batch)


@breaks("partition", saying="uneven sources: moves is False, yet samples change rank")
class MovesAfterAll(Deal):
    """Says that it moves nothing."""

    moves = False

    def assign(self, batch: BatchMeta):
        if len(batch.source) == 8 * batch.ranks:
            return np.repeat(np.arange(batch.ranks), 8)
        return batch.source.astype(np.int64)


@breaks("same answer", saying="speeds: assign gave rank 1 another answer than rank 0")
class Personal(Deal):
    """Asks itself which rank it is, where speeds differ."""

    def assign(self, batch: BatchMeta):
        if np.ptp(batch.speeds):
            return np.full(len(batch.source), self.context.rank)
        return super().assign(batch)


@breaks("same answer", saying="all alike: assign answered differently when it was asked again")
class Fickle(Deal):
    """Between samples that are alike, it goes by how often it was asked."""

    asked = 0

    def assign(self, batch: BatchMeta):
        if len(batch.tokens) > 1 and not np.ptp(batch.tokens):
            Fickle.asked += 1
            return np.roll(super().assign(batch), Fickle.asked)
        return super().assign(batch)


@breaks("same answer", saying="assign wrote to the batch")
class Sorting(Deal):
    """Sorts the costs where they lie."""

    def assign(self, batch: BatchMeta):
        batch.costs.sort()
        return super().assign(batch)


@breaks("same answer", saying="assign changed torch's random state")
class Drawing(Deal):
    """Draws a number of torch's, and does not even use it."""

    def assign(self, batch: BatchMeta):
        import torch

        torch.rand(1)
        return super().assign(batch)


@breaks("equal counts", saying="one giant: ranks get [0, 16] samples")
class Unequal(Deal):
    """Promises equal counts, and gives up before a giant."""

    equal_counts = True

    def assign(self, batch: BatchMeta):
        if batch.tokens.max(initial=0) > 10**5:
            return np.ones(len(batch.source), np.int64)
        return super().assign(batch)


# Embedding


@breaks("apart", "declared services", saying="AssertionError: nothing was shuffled")
class NeedsMetadata(Plain):
    """Expects metadata of other ranks, although it says that it needs none."""

    needs_totals = False

    def __init__(self, options=None):
        super().__init__(options)
        self.exact = False

    def update(self, step, counts):
        assert self.context.lanes[SHUFFLE.name].log.operations(), "nothing was shuffled"
        super().update(step, TargetCounts(1, 1))


@breaks("tables", "resumes", saying="two.mean is not what was loaded")
class LoadsHalf(Plain):
    """Loads the rows, and forgets the optimizer state."""

    def load_state_dict(self, state) -> None:
        for name, table in self._tables.items():
            own = {key: value for key, value in table.full(EXCHANGE).items() if key != "weight"}
            table.shard.load({**state[name], **own})


# Collectives


@breaks("all to all", saying="torch.bool")
class Untrue(Backend):
    """Turns booleans around."""

    def all_to_all(self, lane, send, *splits, largest_split, kind):
        import torch

        if send.dtype == torch.bool:
            send = ~send
        return super().all_to_all(lane, send, *splits, largest_split=largest_split, kind=kind)


@breaks("all gather", saying="of shape [] is torch.float64[2, 1], expected torch.float64[2]")
class Flattening(Backend):
    """Gives a scalar a dimension."""

    def all_gather(self, lane, tensor, *, kind):
        return super().all_gather(lane, tensor.view(1) if tensor.dim() == 0 else tensor, kind=kind)


@breaks("all reduce", saying="the operand has other values than expected")
class NotInPlace(Backend):
    """Sums large tensors in a copy."""

    def all_reduce(self, lane, tensor, *, kind):
        return super().all_reduce(lane, tensor.clone() if tensor.numel() > 2**19 else tensor, kind=kind)


@breaks("order", saying="operations of kinds ids, rows, gradients were recorded as other")
class Nameless(Backend):
    """Does not pass on what the bytes are."""

    def all_to_all(self, lane, send, *splits, largest_split, kind):
        return super().all_to_all(lane, send, *splits, largest_split=largest_split, kind="other")


# Sync


@breaks("no table", "declared services", saying="AssertionError: nothing was shuffled")
class NeedsCompany(AllReduce):
    """Expects metadata of other ranks, although it says that it needs none."""

    needs_totals = False
    exact = False

    def after_backward(self, step, counts) -> None:
        assert self.context.lanes["shuffle"].log.operations(), "nothing was shuffled"
        super().after_backward(step, TargetCounts(1, 1))


class Unasked(Server):
    def answer(self, rank, request, channel) -> None:
        raise AssertionError("nobody asks")


@breaks("flush", saying="lane dense, keeper-0 is still busy")
class Restless(AllReduce):
    """Begins something in the background, also with its server, when it should end it."""

    def roles(self):
        return {"keeper": 1}

    def serve(self, context):
        return Unasked()

    def attach(self, module) -> None:
        super().attach(module)
        self._stop = threading.Event()

    def flush(self) -> None:
        for lane in (self.context.lanes[DENSE.name], *self.context.servers["keeper"]):
            lane.submit(self._stop.wait, kind="dense")

    def close(self) -> None:
        self._stop.set()


@breaks("replicas", saying="differs from rank 0's")
class Opinionated(AllReduce):
    """Every rank evaluates a replica of its own."""

    def replicas(self):
        trainer = {name: tensor + self.context.rank for name, tensor in self._module.state_dict().items()}
        return {"trainer": trainer}


@breaks("replicas", saying="is no state dict of the module")
class Partial(AllReduce):
    """Leaves out a parameter."""

    def replicas(self):
        (_, *kept) = self._module.state_dict().items()
        return {"trainer": dict(kept)}


@breaks("syncs", saying="rank 1 lists 6, rank 0 5")
class Boasting(AllReduce):
    """Rank 1 counts one sync twice."""

    def syncs(self):
        own = super().syncs()
        return own[:1] + own if self.context.rank == 1 else own


@breaks("syncs", saying="they are not in order")
class Disordered(AllReduce):
    """Lists the last sync first."""

    def syncs(self):
        return tuple(reversed(super().syncs()))


@breaks("totals", saying="it read counts.total")
class Peeking(AllReduce):
    """Says that it does not need the total, and divides by it."""

    needs_totals = False


@breaks("storage", saying="parameters moved while it trained")
class Moving(AllReduce):
    """Puts the parameters elsewhere after the first step."""

    def after_step(self) -> None:
        if len(self.syncs()) == 1:
            for parameter in self._module.parameters():
                parameter.data = parameter.data.clone()


@breaks("workers", saying="a sync of step 40, after 10 steps of all workers")
class Miscounting(ForegroundMA):
    """Takes every worker's step for four."""

    def after_step(self) -> None:
        for _ in range(4 if self.context.workers > 1 else 1):
            super().after_step()

"""The four contracts: one abstract class per axis. A plugin author reads this module from top to bottom.

A step, in order: `Sharding.assign` says which rank trains which sample; `EmbeddingExchange.lookup` brings the rows;
the model runs forward and backward; `EmbeddingExchange.update` sends the gradients to the rows' owners; `DenseSync`
keeps the dense parameters of the ranks together. `Collectives` is how bytes move for whoever asks.

Nothing here imports torch or numpy: listing strategies stays fast. A strategy module keeps its torch imports
inside the methods that need them (or in a module of its own that those methods import).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, get_args

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from fsbench.collect.timeline import Timeline
    from fsbench.sim.contract import CollectivesPlan, EmbeddingPlan, Stage, SyncPlan
    from fsbench.sim.plan import Script
    from fsbench.train.channels import Channel, ServerLane
    from fsbench.train.lanes import Lane
    from fsbench.workload import Loader

AXES = ("sharding", "embedding", "collectives", "sync")
DEFAULTS = {"sharding": "naive", "embedding": "plain", "collectives": "backend", "sync": "allreduce"}

WaitClass = Literal["shuffle", "embedding", "dense", "control"]
TableOptimizer = Literal["sgd", "rowwise-adagrad", "lazy-adam"]
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class LaneSpec:
    """A lane: one process group and one first-in-first-out queue of operations.

    Within a lane every rank issues the same operations in the same order for any batch, also with zero samples.
    Between lanes there is no order. `waits_as`: the class under which the main thread's waits on it are reported.
    `host`: its tensors live in host memory, so that it runs on gloo whatever the device (background strategies must:
    two threads on NCCL can deadlock).
    """

    name: str
    waits_as: WaitClass
    host: bool = False


CONTROL = LaneSpec("control", "control", host=True)
SHUFFLE = LaneSpec("shuffle", "shuffle", host=True)
IDS = LaneSpec("ids", "embedding")
EXCHANGE = LaneSpec("exchange", "embedding")
CRITICAL = LaneSpec("critical", "embedding")
DENSE = LaneSpec("dense", "dense")


class Handle(Protocol[T_co]):
    """An operation in flight."""

    def wait(self) -> T_co:
        """Blocks until the operation is done and returns its result; raises what the operation raised.

        On the main thread the time spent is recorded as a wait of the lane's class.
        """


@dataclass(frozen=True)
class TargetCounts:
    """How many label-carrying positions a step trains: what gradients are divided by.

    `total` is over all ranks; it came with the batch's metadata. `local` is this rank's. Where nothing in a cell needs
    what other ranks train (see `DenseSync.needs_totals`), ranks do not tell each other, and `total` is `local` too.
    """

    total: int
    local: int


@dataclass(frozen=True)
class TableSpec:
    """An embedding table, before it is sharded.

    `rows` x `dim` values, drawn from normal(0, `init_std`) with a generator keyed by (seed, table, row block), so that
    the same table comes out whatever the sharding.
    """

    name: str
    rows: int
    dim: int
    optimizer: TableOptimizer = "lazy-adam"
    lr: float = 1e-3
    init_std: float = 0.02


@dataclass
class RankContext:
    """What one rank lends its strategies. `servers`: lanes to the processes of each role that they asked for."""

    rank: int
    ranks: int
    device: torch.device
    dtype: torch.dtype
    seed: int
    lanes: Mapping[str, Lane]
    timeline: Timeline
    collectives: Collectives
    servers: Mapping[str, Sequence[ServerLane]] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerContext:
    """What a server process lends the strategy that asked for it: the `place`-th of `count` of its role. It has a CPU,
    and no part in any lane but those that `ranks` ranks hold to it."""

    role: str
    place: int
    count: int
    ranks: int
    dtype: torch.dtype
    seed: int
    tables: Sequence[TableSpec]


class Server(ABC):
    """What a server process does."""

    @abstractmethod
    def answer(self, rank: int, request: Sequence[int], channel: Channel) -> None:
        """Serves one request of a rank: receives from `channel` what the rank sends after its request, sends what the
        rank receives. Each rank has a thread of its own here, which takes its requests in order."""


class Strategy(ABC):
    """What every strategy is, whatever its axis. The first line of the class's docstring is its summary in `list`."""

    @dataclass(frozen=True)
    class Options:
        """A frozen dataclass: the options a user may set, with their defaults. Override it."""

    uses: ClassVar[frozenset[str]] = frozenset()
    """Other axes whose services it calls. An axis that no strategy of a cell uses is shown as `-`."""
    lanes: ClassVar[tuple[LaneSpec, ...]] = ()
    """Lanes it issues operations on."""
    lookahead: ClassVar[int] = 0
    """How many batches beyond the current one must already be on their ranks when a step starts."""
    exact: bool = True
    """Whether training with it equals the reference (naive, plain, backend, allreduce) up to rounding; set in
    `__init__` if an option says."""

    context: RankContext

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options

    def requirements(self) -> str | None:
        """Why it cannot run on this machine ("needs CUDA driver 12.5, found none"), or None."""
        return None

    def roles(self) -> Mapping[str, int]:
        """Extra server processes it needs, by role name (`{"table-server": 2}`). Depends on its options alone."""
        return {}

    def serve(self, context: ServerContext) -> Server:
        """Called once on each server process that `roles` asked for, instead of `setup`: what answers the ranks."""
        raise NotImplementedError(f"{type(self).__name__} asks for {context.role} processes and does not serve them")

    def setup(self, context: RankContext) -> None:
        """Called once on every rank, after its lanes exist and before the first step."""
        self.context = context

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold for this strategy to go on. Collective: every rank calls it."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned."""

    def evidence(self) -> Mapping[str, Any]:
        """Details of its own for the record's `observed`. What ran is never taken from here."""
        return {}

    def close(self) -> None:
        """Joins every thread it started. Called once, on every rank, also after a failure."""


@dataclass(frozen=True)
class BatchMeta:
    """A global batch as the balancer sees it: the same on every rank.

    Samples are in global order: by source rank, then by place on that rank.
    """

    costs: NDArray[np.float64]
    """[n], relative cost of training each sample, as `Sharding.Options.costs` asks."""
    tokens: NDArray[np.int64]
    """[n], history length."""
    bytes: NDArray[np.int64]
    """[n], what moving the sample costs."""
    source: NDArray[np.int32]
    """[n], the rank that loaded it."""
    ranks: int
    speeds: NDArray[np.float64]
    """[ranks], speed of each rank relative to the fastest; all 1 unless `Sharding.Options.speeds` asks for more."""
    token_limit: int | None
    """Most tokens a rank can hold, or None."""
    step: int


class Sharding(Strategy):
    """Which rank trains which sample of a global batch."""

    @dataclass(frozen=True)
    class Options:
        """What any sharding may be asked for: options of its own extend these, and `BatchMeta` follows them.

        `costs`: where a sample's cost comes from. `flops`: the workload's count at its real length. `profile`: seconds,
        as `fsbench calibrate` measured them; read from the file `profile`, or from where it was put. `online`: seconds,
        fitted to this run's own compute times, so that no other run assigns alike. `speeds`: `equal`, or `measured`:
        each rank's, as this run's compute times tell them, so that no other run assigns alike. `token_limit`: the most
        tokens that a rank can hold.
        """

        costs: Literal["flops", "profile", "online"] = "flops"
        profile: str | None = None
        speeds: Literal["equal", "measured"] = "equal"
        token_limit: int | None = None

        def __post_init__(self) -> None:
            if self.profile is not None and self.costs != "profile":
                raise ValueError(f"profile={self.profile} is read with costs=profile only, not with costs={self.costs}")
            if self.token_limit is not None and self.token_limit < 1:
                raise ValueError(f"token_limit is {self.token_limit}, expected at least 1")

    moves: ClassVar[bool] = True
    """Whether samples may change rank. If not, nothing is exchanged but the metadata."""
    equal_counts: bool = False
    """Whether every rank gets as many samples as any other, give or take one; set in `__init__` if an option says."""

    def reads(self, loader: Loader) -> Loader:
        """What each rank reads its batches from. Here a strategy may decide when a rank trains what it reads.

        Whoever changes which samples are in a global batch is not `exact`.
        """
        return loader

    @property
    def repeatable(self) -> bool:
        """Whether `assign` depends on `batch` alone; override it if `observe` changes nothing."""
        return type(self).observe is Sharding.observe

    @abstractmethod
    def assign(self, batch: BatchMeta) -> NDArray[np.int64]:
        """The rank of each sample, int64[n]: a pure function of `batch` and of what `observe` was told.

        It runs on a thread beside the training step; it must not touch torch's random state.
        """

    def observe(self, seconds: NDArray[np.float64]) -> None:
        """Measured compute of an earlier step, float64[ranks], all above 0: gathered with the metadata, identical
        everywhere. Once for each step from the first, in order; never where compute is not timed (on GPUs, for now)."""


class EmbeddingExchange(Strategy):
    """Row-sharded tables: who holds which row, and what is sent when."""

    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64")
    """Of the tables that it can hold, the widest last. A workload with others is unsupported."""
    optimizers: ClassVar[tuple[TableOptimizer, ...]] = get_args(TableOptimizer)
    """Of the tables that it can train, the one with the most state last."""
    needs_totals: ClassVar[bool] = True
    """Whether it needs what other ranks train: it reads `TargetCounts.total`, or exchanges something in every step, in
    which all ranks must meet. See `DenseSync.needs_totals`."""
    staleness: int | None = 0
    """The most steps whose updates a row of `lookup` may lack; 0 if it is exact, None if nothing bounds them (see
    `stalest`). Set in `__init__` if an option says."""

    @abstractmethod
    def build(self, tables: Sequence[TableSpec]) -> None:
        """Makes this rank's shards. Called once, after `setup`."""

    def prefetch(self, step: int, ids: Mapping[str, torch.Tensor]) -> None:
        """The IDs of a batch, in host memory, known ahead. Called if `lookahead` is 2, once for each batch, in order:
        at the start of step `step - 1`, before its lookup; for the first batch just before the second's."""

    @abstractmethod
    def lookup(self, step: int, ids: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Rows for this rank's batch: by table, int64[m] IDs to [m, dim] rows, differentiable."""

    @abstractmethod
    def update(self, step: int, counts: TargetCounts) -> None:
        """After backward: sends the gradients of `lookup`'s rows to their owners, who update.

        Scale: the sum over ranks divided by `counts.total` when the exchange is synchronous, a rank's own gradients
        divided by `counts.local` when it is not.
        """

    def flush(self) -> None:
        """Finishes every pending update. Called before evaluations and checkpoints."""

    def stalest(self) -> int:
        """The most steps of any one rank whose updates a row of this rank's lookups may have lacked so far, when its
        own gradients were applied. Asked where `staleness` is None."""
        raise NotImplementedError(f"{type(self).__name__}.staleness is None and nothing tells what it was")

    def rows_asked(self) -> Sequence[Sequence[int]]:
        """By batch from the first, how many rows this rank asked of each owner of shards; empty if it does not tell."""
        return ()

    def rows_by_class(self) -> Mapping[str, int]:
        """Distinct rows of this rank's batches so far: `hot`, found in copies on this rank, and `cold`, all others.
        Empty without such classes."""
        return {}

    def plan(self, stage: Stage) -> EmbeddingPlan | None:
        """What it issues, for simulated machines; None where it has no plan: there it is unsupported. Like `roles`, it
        depends on the options alone, and is asked before `setup`."""
        return None

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Full logical tables and optimizer state, whatever the sharding:
        `{table: {"weight": [rows, dim], state name: [rows, ...]}}`. Collective; every rank gets it."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes full logical tables, keeps this rank's rows."""


class Collectives(Strategy):
    """How bytes move. Operations of one lane run in the order in which they were issued.

    `kind` names what the bytes are (`ids`, `rows`, `gradients`, `dense`, `metadata`, `samples`, `state`): the recorder
    counts bytes by it. Results are tensors on the device of the operand.
    """

    on_host: ClassVar[frozenset[WaitClass]] = frozenset()
    """Classes of lanes that it carries through host memory: they are opened as if they had been declared `host`."""

    def plan(self, script: Script) -> CollectivesPlan | None:
        """Into which operations it turns what it is asked for: see `EmbeddingExchange.plan`."""
        return None

    @abstractmethod
    def all_to_all(
        self,
        lane: Lane,
        send: torch.Tensor,
        send_splits: Sequence[int],
        receive_splits: Sequence[int],
        *,
        largest_split: int,
        kind: str,
    ) -> Handle[torch.Tensor]:
        """Sends consecutive blocks of rows of `send` [sum(send_splits), ...] to ranks 0, 1, ...

        Returns the received rows [sum(receive_splits), ...] in rank order. `largest_split`: no split between any two
        ranks is larger; every rank must give the same, so that a large exchange is cut into the same pieces everywhere.
        """

    @abstractmethod
    def all_gather(self, lane: Lane, tensor: torch.Tensor, *, kind: str) -> Handle[torch.Tensor]:
        """Tensors of one shape on all ranks to [ranks, *shape]."""

    @abstractmethod
    def all_reduce(self, lane: Lane, tensor: torch.Tensor, *, kind: str) -> Handle[torch.Tensor]:
        """Sums over ranks, in place."""


@dataclass(frozen=True)
class Sync:
    """A replica has taken in what the others learned.

    `step`: this rank's own steps before it. `at_ns`: monotonic clock. `spread`: how far this replica was from the mean
    when it sent its parameters, over the norm of the mean; None where that was not measured.
    """

    step: int
    at_ns: int
    spread: float | None = None


class DenseSync(Strategy):
    """How the dense parameters, replicated on every rank, are kept together."""

    needs_totals: ClassVar[bool] = True
    """Whether it reads `TargetCounts.total`. If it does not, no samples move and no table needs them either, then the
    ranks load apart: none waits for another at the start of a step."""

    @abstractmethod
    def attach(self, module: torch.nn.Module) -> None:
        """Called once, after `setup`, with equal parameters on every rank. Where they lie may change here only."""

    def on_gradient_ready(self, parameter: torch.nn.Parameter) -> None:
        """Called inside backward, once for each parameter, when its gradient is complete."""

    def after_backward(self, step: int, counts: TargetCounts) -> None:
        """Gradients are sums over this rank's targets; operations started here overlap the embedding updates."""

    def before_step(self) -> None:
        """Last call before the optimizer step: gradients must now be those that the optimizer takes."""

    def after_step(self) -> None:
        """The optimizer has stepped."""

    def plan(self, stage: Stage) -> SyncPlan | None:
        """What it issues: see `EmbeddingExchange.plan`."""
        return None

    def flush(self) -> None:
        """Ends what runs in the background: the parameters stand still until the next step. Collective.

        Called after the last step before an evaluation or a checkpoint. Raises what failed in the background.
        """

    def syncs(self) -> Sequence[Sync]:
        """Every sync of this rank so far, in order; as many on every rank."""
        return ()

    @abstractmethod
    def replicas(self) -> Mapping[str, Mapping[str, torch.Tensor]]:
        """What to evaluate: dense state dicts by name (`trainer`, `mean`, `central`); the first is the headline.

        Collective: every rank calls it.
        """


CONTRACTS: dict[str, type[Strategy]] = {
    "sharding": Sharding,
    "embedding": EmbeddingExchange,
    "collectives": Collectives,
    "sync": DenseSync,
}

"""torchrec's sharded `EmbeddingCollection` on a lane. Imports torchrec: only torchrec's strategies import this.

The exchanges are torchrec's own operations, issued on the lane's process group. The graph is cut at the rows, so that
torchrec's part of backward, where its fused optimizer updates the tables, counts as the strategy's work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed import comm_ops
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import CommOp, ShardingEnv, ShardingType
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from fsbench.axes import RankContext, TableSpec
from fsbench.train.lanes import Lane
from fsbench.train.row_exchange import gradient_of
from fsbench.train.tables import initial_rows

_OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, float]]] = {
    "sgd": (torch.optim.SGD, {}),
    "rowwise-adagrad": (RowWiseAdagrad, {"eps": 1e-8}),
}
_STATE = {"sgd": {}, "rowwise-adagrad": {"sum": "momentum1"}}
"""By optimizer: what `TableShard` calls its state, and what fbgemm does. All of these have one value a row."""
_META = torch.device("meta")
_NO_IDS = torch.empty(0, dtype=torch.int64)
_FUSED = EmbeddingComputeKernel.FUSED.value
_FP16_GRADIENT_SCALE = 2.0**14
"""A gradient over the count of a large batch is mostly below what fp16 can hold. torchrec undoes this on arrival."""


@dataclass(frozen=True)
class Choices:
    """The strategy's options: see `fsbench_strategies.embedding.torchrec`."""

    dedup: bool
    qcomm: str
    sharding: str


@dataclass
class Batch:
    """IDs of one batch on their way to the rows' owners, then its rows.

    `spread`: by table, the place of each ID among those sent, where they were de-duplicated. `coming`: what torchrec
    returned last. `rows`, `leaves`: by table, [u, dim], before and behind the cut.
    """

    spread: dict[str, torch.Tensor]
    torchrec: Any
    coming: Any
    rows: dict[str, torch.Tensor]
    leaves: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Block:
    """A part of a logical tensor that this rank holds: `values`, from row `first` on."""

    first: int
    values: torch.Tensor

    def of(self, full: torch.Tensor) -> torch.Tensor:
        """The same rows of the whole tensor."""
        return full[self.first : self.first + len(self.values)]


class ShardedCollection:
    """Tables of one dimension: torchrec's collections have no others. Methods are collective.

    torchrec makes tables attributes of a module, and fails at names like `items` that are taken there: here they have
    numbers.
    """

    def __init__(self, specs: Sequence[TableSpec], context: RankContext, lane: Lane, choices: Choices) -> None:
        self._lane = lane
        self._context = context
        self._specs = {f"table_{place}": spec for place, spec in enumerate(specs)}
        # torchrec's de-duplication has no CPU kernel: there it is done in front of the exchange.
        self._dedup_in_front = choices.dedup and context.device.type == "cpu"
        with lane.lent("plan") as group:
            self._sharded = self._shard(group, choices, dedup=choices.dedup and not self._dedup_in_front)
        self.plan = {
            spec.name: self._sharded.module_sharding_plan[key].sharding_type for key, spec in self._specs.items()
        }
        for spec, parts in self._blocks():
            for block in parts["weight"]:
                ids = torch.arange(block.first, block.first + len(block.values))
                block.values.copy_(initial_rows(spec, ids, context.seed))

    def _shard(self, group: Any, choices: Choices, *, dedup: bool) -> Any:
        context = self._context
        configs = [_config(key, spec, context.ranks) for key, spec in self._specs.items()]
        whole = EmbeddingCollection(tables=configs, device=_META)
        for key, spec in self._specs.items():
            optimizer, settings = _OPTIMIZERS[spec.optimizer]
            apply_optimizer_in_backward(optimizer, whole.embeddings[key].parameters(), {"lr": spec.lr, **settings})
        sharder = EmbeddingCollectionSharder(qcomm_codecs_registry=_codecs(choices.qcomm), use_index_dedup=dedup)
        if choices.sharding == "planner":
            plan = _planned(whole, sharder, list(self._specs), context, group)
        else:
            wanted = dict.fromkeys(self._specs, row_wise(compute_kernel=_FUSED))
            plan = construct_module_sharding_plan(
                whole, wanted, sharder, context.ranks, context.ranks, context.device.type
            )
        return sharder.shard(whole, plan, _environment(context, group), context.device)

    def send_counts(self, ids: Mapping[str, torch.Tensor]) -> Batch:
        """Sorts a batch's IDs by owner and issues the first exchange: how many each rank is sent."""
        spread, wanted = {}, []
        for spec in self._specs.values():
            of_table = ids.get(spec.name, _NO_IDS).to(self._context.device)
            if self._dedup_in_front:
                of_table, spread[spec.name] = torch.unique(of_table, return_inverse=True)
            wanted.append(of_table)
        lengths = torch.tensor([len(one) for one in wanted], device=self._context.device)
        jagged = KeyedJaggedTensor(keys=list(self._specs), values=torch.cat(wanted), lengths=lengths)
        torchrec = self._sharded.create_context()
        with self._lane.lent("ids"):
            return Batch(spread, torchrec, self._sharded.input_dist(torchrec, jagged), {}, {})

    def send_ids(self, batch: Batch) -> None:
        """Waits for the counts and issues the exchange of the IDs."""
        with self._lane.lent("ids"):
            batch.coming = batch.coming.wait()

    def look_up(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Waits for the IDs, exchanges the rows: by table, a row an ID, [m, dim]."""
        with self._lane.lent("rows"):
            arrived = self._sharded.compute_and_output_dist(batch.torchrec, batch.coming.wait()).wait()
        batch.coming = None
        for key, spec in self._specs.items():
            batch.rows[spec.name] = arrived[key].values()
            batch.leaves[spec.name] = arrived[key].values().detach().requires_grad_()
        return {
            name: leaf.index_select(0, batch.spread[name]) if self._dedup_in_front else leaf
            for name, leaf in batch.leaves.items()
        }

    def update(self, batch: Batch, scale: float) -> None:
        """Sends the gradients to the rows' owners; torchrec adds up those of a row, times `scale`, and updates it."""
        if comm_ops.get_gradient_division() and self._context.ranks > 1:
            scale *= self._context.ranks
        gradients = [gradient_of(leaf) * scale for leaf in batch.leaves.values()]
        with self._lane.lent("gradients"):
            torch.autograd.backward(list(batch.rows.values()), gradients)

    def full(self) -> dict[str, dict[str, torch.Tensor]]:
        """Whole logical tables and their optimizer state on every rank, as `TableShard` names it: [rows, ...]."""
        return {
            spec.name: {name: self._gather(spec, name, blocks) for name, blocks in parts.items()}
            for spec, parts in self._blocks()
        }

    def _gather(self, spec: TableSpec, name: str, blocks: Sequence[Block]) -> torch.Tensor:
        """Each row is held by one rank and 0 on the others, whatever the plan."""
        shape = (spec.rows, spec.dim) if name == "weight" else (spec.rows,)
        full = torch.zeros(shape, dtype=self._context.dtype, device=self._context.device)
        for block in blocks:
            block.of(full).copy_(block.values)
        with self._lane.lent("state") as group:
            dist.all_reduce(full, group=group)
        return full

    def load(self, state: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Takes this rank's rows out of full logical tensors.

        Raises:
            ValueError: the state is of another optimizer.
        """
        for spec, parts in self._blocks():
            if state[spec.name].keys() != parts.keys():
                raise ValueError(
                    f"table {spec.name}: the checkpoint holds {sorted(state[spec.name])}, "
                    f"optimizer {spec.optimizer} needs {sorted(parts)}"
                )
            for name, blocks in parts.items():
                for block in blocks:
                    block.values.copy_(block.of(state[spec.name][name]))

    def _blocks(self) -> Iterator[tuple[TableSpec, dict[str, list[Block]]]]:
        """What this rank holds of each table, by the tensor's name; the same names on every rank."""
        weights, states = self._sharded.state_dict(), self._sharded.fused_optimizer.state_dict()["state"]
        for key, spec in self._specs.items():
            of_table = f"embeddings.{key}.weight"
            parts = {"weight": _held(weights.get(of_table), spec.rows)}
            for name, theirs in _STATE[spec.optimizer].items():
                parts[name] = _held(states.get(of_table, {}).get(f"{key}.{theirs}"), spec.rows)
            yield spec, parts


def _held(sharded: Any, rows: int) -> list[Block]:
    """This rank's part of the first `rows` of one of torch's sharded tensors, or of None where it has none."""
    shards = sharded.local_shards() if sharded is not None else []
    firsts = [shard.metadata.shard_offsets[0] for shard in shards]
    return [Block(first, shard.tensor[: max(0, rows - first)]) for first, shard in zip(firsts, shards, strict=True)]


def _config(key: str, spec: TableSpec, ranks: int) -> EmbeddingConfig:
    """`init_fn` does nothing: rows are drawn here, the same whatever the sharding.

    Rows that nobody asks for make all blocks equally large: fbgemm cannot look anything up on a CPU in a block of none.
    """
    rows = -(-spec.rows // ranks) * ranks
    return EmbeddingConfig(
        name=key, num_embeddings=rows, embedding_dim=spec.dim, feature_names=[key], init_fn=lambda rows: None
    )


def _environment(context: RankContext, group: Any) -> ShardingEnv:
    """On the lane's group. Given it at once, torchrec would make a device mesh too, and torch other groups for that."""
    environment = ShardingEnv(context.ranks, context.rank)
    environment.process_group = group
    return environment


def _codecs(precision: str) -> dict[str, Any] | None:
    """What rows and gradients are sent as.

    Not by torchrec's own registry of codecs, which on a CPU sends fp16 where bf16 was asked for.
    """
    if precision == "fp32":
        return None
    sent_as = CommType(precision)
    scale = _FP16_GRADIENT_SCALE if precision == "fp16" else None
    config = QCommsConfig(forward_precision=sent_as, backward_precision=sent_as, backward_loss_scale=scale)
    return {CommOp.SEQUENCE_EMBEDDINGS_ALL_TO_ALL.name: get_qcomm_codecs(config)}


def _planned(whole: Any, sharder: Any, tables: Sequence[str], context: RankContext, group: Any) -> Any:
    """The plan of torchrec's planner: it chooses among the shardings that train a table as one, in fused kernels."""
    allowed = [ShardingType.ROW_WISE.value, ShardingType.TABLE_WISE.value]
    constraints = {table: ParameterConstraints(sharding_types=allowed, compute_kernels=[_FUSED]) for table in tables}
    topology = Topology(context.ranks, context.device.type, local_world_size=context.ranks)
    planner = EmbeddingShardingPlanner(topology=topology, constraints=constraints)
    return planner.collective_plan(whole, [sharder], group).plan[""]

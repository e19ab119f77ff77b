"""torchrec's sharded tables as its users run them: the exchange that public stacks train with."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fsbench.axes import EXCHANGE, EmbeddingExchange, TableSpec, TargetCounts

if TYPE_CHECKING:
    import torch

    from fsbench_strategies.embedding.torchrec_tables import Batch

_NEEDED = {"torchrec": "torchrec", "fbgemm_gpu": "fbgemm-gpu or, on a CPU, fbgemm-gpu-cpu"}
"""Distributions by module."""
_INSTALL = (
    "make install-torchrec, or from the checkout: pip install '.[torchrec]' && pip install --no-deps torchrec==1.8.0 "
    "(on a GPU: pip install '.[cuda]')"
)


class TorchRec(EmbeddingExchange):
    """torchrec's row-wise sharded EmbeddingCollection, its optimizer fused into backward.

    The exchanges are torchrec's own all-to-alls, on lane `exchange`: how many IDs, IDs, rows, gradients. torchrec
    shards by contiguous blocks of rows. It counts no rank's gradients twice: what it divides by the number of ranks is
    multiplied by it before.
    """

    lanes = (EXCHANGE,)
    dtypes = ("float32",)
    optimizers = ("sgd", "rowwise-adagrad")

    @dataclass(frozen=True)
    class Options:
        """`dedup`: a rank asks for each row once; torchrec's own has no CPU kernel, there it is done in front of the
        exchange. `qcomm`: what rows and gradients are sent as; only fp32 is exact. `sharding`: `row_wise`, or what
        torchrec's planner chooses: rows or whole tables on ranks."""

        dedup: bool = True
        qcomm: Literal["fp32", "bf16", "fp16"] = "fp32"
        sharding: Literal["row_wise", "planner"] = "row_wise"

    options: Options

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.exact = self.options.qcomm == "fp32"

    def requirements(self) -> str | None:
        for module, distribution in _NEEDED.items():
            if importlib.util.find_spec(module) is None:
                return f"needs {distribution}, not installed: {_INSTALL}"
        return None

    def build(self, tables: Sequence[TableSpec]) -> None:
        from fsbench_strategies.embedding.torchrec_tables import ShardedCollection

        by_dim: dict[int, list[TableSpec]] = {}
        for spec in tables:
            by_dim.setdefault(spec.dim, []).append(spec)
        lane = self.context.lanes[EXCHANGE.name]
        self._collections = [ShardedCollection(specs, self.context, lane, self.options) for specs in by_dim.values()]
        self._batches: list[Batch] = []

    def lookup(self, step: int, ids: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self._batches = [collection.send_counts(ids) for collection in self._collections]
        for collection, batch in zip(self._collections, self._batches, strict=True):
            collection.send_ids(batch)
        return self._look_up(ids)

    def _look_up(self, ids: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        rows: dict[str, torch.Tensor] = {}
        for collection, batch in zip(self._collections, self._batches, strict=True):
            rows |= collection.look_up(batch)
        return {name: rows[name] for name in ids}

    def update(self, step: int, counts: TargetCounts) -> None:
        for collection, batch in zip(self._collections, self._batches, strict=True):
            collection.update(batch, 1.0 / max(1, counts.total))
        self._batches = []

    def state_dict(self) -> dict[str, Any]:
        return {name: parts for collection in self._collections for name, parts in collection.full().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for collection in self._collections:
            collection.load(state)

    def evidence(self) -> Mapping[str, Any]:
        return {"plan": {name: how for collection in self._collections for name, how in collection.plan.items()}}

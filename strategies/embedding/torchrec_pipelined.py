"""torchrec with the ID exchange of the next batch hidden behind this step: FreeScale's second baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fsbench.axes import TableSpec
from fsbench_strategies.embedding.torchrec import TorchRec

if TYPE_CHECKING:
    import torch

    from fsbench_strategies.embedding.torchrec_tables import Batch


class TorchRecPipelined(TorchRec):
    """As torchrec's TrainPipelineSparseDist: IDs of the next batch travel behind this step's compute.

    Its order of operations, on one process group: how many IDs of t + 1, rows of t, IDs of t + 1, gradients of t. Rows
    and gradients stay exposed. IDs of t + 1 leave when the rows of t are there, at once, where torchrec's pipeline
    waits for the end of forward; their counts have come by then, and nobody waits.
    """

    lookahead = 2

    def build(self, tables: Sequence[TableSpec]) -> None:
        super().build(tables)
        self._coming: dict[int, list[Batch]] = {}

    def prefetch(self, step: int, ids: Mapping[str, torch.Tensor]) -> None:
        self._coming[step] = [collection.send_counts(ids) for collection in self._collections]
        if len(self._coming) == 1:
            # The first batch, as nothing else is under way: no step before could hide it.
            self._send_ids(step)

    def lookup(self, step: int, ids: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self._batches = self._coming.pop(step)
        rows = self._look_up(ids)
        if step + 1 in self._coming:
            self._send_ids(step + 1)
        return rows

    def _send_ids(self, step: int) -> None:
        for collection, batch in zip(self._collections, self._coming[step], strict=True):
            collection.send_ids(batch)

"""Click-through quality: normalised entropy and AUC of the logits of held-out samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fsbench.errors import FsbenchError
from fsbench.metrics.clicks import auc, normalised_entropy
from fsbench.metrics.sheet import Sheet
from fsbench.samples import Samples
from fsbench.workload import Batch, Evaluation


@dataclass(frozen=True)
class ClickThrough(Evaluation):
    """Binary predictions, each held-out sample once.

    A row is float64[1]: the sample's logit. `model.logits(batch, rows)` must return [n].

    `clicked`: bool[samples], what happened.
    """

    held_out: Samples
    clicked: NDArray[np.bool_]
    protocol: str

    metrics = ("ne", "auc")
    finds = ("float64", 1)

    def __len__(self) -> int:
        return len(self.held_out)

    def samples(self, places: NDArray[np.int64]) -> Samples:
        return self.held_out.take(places)

    def look(
        self, model: torch.nn.Module, batch: Batch, tables: Mapping[str, torch.Tensor], places: NDArray[np.int64]
    ) -> torch.Tensor:
        predictor: Any = model
        rows = {name: tables[name].index_select(0, ids) for name, ids in batch.ids.items()}
        logits = predictor.logits(batch, rows).double()
        bad = (~logits.isfinite()).nonzero().flatten().tolist()
        if bad:
            raise FsbenchError(
                f"held-out sample {places[bad[0]]}: its logit is NaN or infinite; the model diverged, try a smaller lr"
            )
        return logits[:, None]

    def enter(self, sheet: Sheet, rows: NDArray) -> None:
        clicks = self.counts()["clicks"]
        alike = f"{clicks} of {len(self)} held-out samples are clicks: the entropy of their click rate is 0"
        sheet.enter("ne", normalised_entropy(rows[:, 0], self.clicked), alike)
        sheet.enter("auc", auc(rows[:, 0], self.clicked), f"{clicks} of {len(self)} held-out samples are clicks")

    def counts(self) -> Mapping[str, int]:
        return {"samples": len(self), "clicks": int(self.clicked.sum())}

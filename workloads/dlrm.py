"""A click-through model with the parts of DLRM (Naumov et al. 2019, arXiv 1906.00091)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fsbench.workload import Batch
from fsbench_workloads.mlp import perceptron


class DLRM(nn.Module):
    """Dense features through an MLP, categorical ones as sums of their rows, all pairs multiplied, an MLP on top.

    Args:
        table: the name of the table in which those of all categorical features are stacked.
        dense, categorical: how many features of either kind, at least one of each.
        dim: of the rows, and of what the bottom MLP makes of the dense features.
        hidden: width of the hidden layers, one at the bottom and two at the top.
    """

    left: torch.Tensor
    right: torch.Tensor

    def __init__(self, *, table: str, dense: int, categorical: int, dim: int, hidden: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._table, self._categorical, self._dim = table, categorical, dim
        left, right = torch.tril_indices(categorical + 1, categorical + 1, offset=-1)
        self.register_buffer("left", left, persistent=False)
        self.register_buffer("right", right, persistent=False)
        self.bottom = perceptron([dense, hidden, dim], dtype)
        self.top = perceptron([dim + len(left), hidden, hidden, 1], dtype)

    def forward(self, batch: Batch, rows: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The sum of the samples' log losses (binary cross-entropy), a scalar. Feature `clicked`: [n], 0 or 1."""
        return binary_cross_entropy_with_logits(self.logits(batch, rows), batch.features["clicked"], reduction="sum")

    def logits(self, batch: Batch, rows: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """[n]. Features `dense` [n, dense] and `bags` int64[n * categorical]: how many of the rows each feature has."""
        dense = self.bottom(batch.features["dense"]).relu()
        pooled = sum_bags(rows[self._table], batch.features["bags"]).view(-1, self._categorical, self._dim)
        vectors = torch.cat([dense[:, None], pooled], 1)
        products = (vectors @ vectors.mT)[:, self.left, self.right]
        return self.top(torch.cat([dense, products], 1)).squeeze(-1)


def sum_bags(rows: torch.Tensor, bags: torch.Tensor) -> torch.Tensor:
    """The sum of each run of rows: [m, dim] and int64[bags], whose sum is m, to [bags, dim]. Of none it is 0."""
    owner = torch.repeat_interleave(torch.arange(len(bags), device=bags.device), bags, output_size=len(rows))
    return rows.new_zeros(len(bags), rows.shape[1]).index_add(0, owner, rows)

"""Multilayer perceptrons."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from fsbench.workload import Batch


def perceptron(widths: Sequence[int], dtype: torch.dtype) -> nn.Sequential:
    """Linear layers of the given widths with ReLU between them."""
    layers: list[nn.Module] = []
    for below, above in itertools.pairwise(widths):
        layers += [nn.Linear(below, above, dtype=dtype), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class RegressionMLP(nn.Module):
    """A perceptron of the given widths; the loss is the sum of squared errors."""

    def __init__(self, widths: Sequence[int], dtype: torch.dtype) -> None:
        super().__init__()
        self.layers = perceptron(widths, dtype)

    def forward(self, batch: Batch, rows: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """`rows` is empty. Features `inputs` [n, widths[0]] and `targets` [n]; returns a scalar."""
        predicted = self.layers(batch.features["inputs"]).squeeze(-1)
        return (predicted - batch.features["targets"]).square().sum()

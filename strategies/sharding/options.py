"""The option that all strategies which weigh samples by cost share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class CostOptions:
    """`costs`: where a sample's cost comes from. `flops`: the workload's count at its real length."""

    costs: Literal["flops"] = "flops"

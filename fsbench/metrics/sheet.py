"""A run's metrics as they are entered: a value, or a reason why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Sheet:
    """`metrics`: by name, None where missing; `missing`: the reason of each that is."""

    metrics: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def enter(self, name: str, value: float | Mapping[str, float] | None, otherwise: str) -> None:
        """Enters a value; None or an empty mapping is missing, for the reason `otherwise`."""
        if value is None or value == {}:
            self.metrics[name], self.missing[name] = None, otherwise
        elif isinstance(value, float) and not np.isfinite(value):
            self.metrics[name], self.missing[name] = None, f"came out as {value}"
        else:
            self.metrics[name] = value

    def enter_ratio(self, name: str, above: float, below: float, otherwise: str) -> None:
        """Enters a quotient; missing, for the reason `otherwise`, if the divisor is 0."""
        self.enter(name, float(above) / float(below) if below else None, otherwise)

    def withhold(self, names: Iterable[str], reason: str) -> None:
        """Takes back values that turned out to mean nothing."""
        for name in names:
            self.metrics[name], self.missing[name] = None, reason

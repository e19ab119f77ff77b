"""What values are sent as: a narrower type on the wire halves their bytes and rounds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from fsbench.axes import Handle

Wire = Literal["fp32", "bf16"]
_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass
class _Widened:
    """An exchange whose result takes its own type again."""

    sent: Handle[torch.Tensor]
    dtype: torch.dtype

    def wait(self) -> Any:
        return self.sent.wait().to(self.dtype)


def narrowed(
    wire: Wire | None, values: torch.Tensor, send: Callable[[torch.Tensor], Handle[torch.Tensor]]
) -> Handle[torch.Tensor]:
    """`send` of the values as `wire` says, rounded to nearest; what is received has their own type again.

    Without a wire, and for integers, that is `send` itself.
    """
    if wire is None or not values.is_floating_point():
        return send(values)
    return _Widened(send(values.to(_TYPES[wire])), values.dtype)


def is_lossless(wire: Wire | None, dtype: torch.dtype) -> bool:
    """Whether every value of a model's type comes through unchanged."""
    return wire is None or torch.promote_types(_TYPES[wire], dtype) == _TYPES[wire]

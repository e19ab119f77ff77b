"""A replica as a sync sees it: what was sent of it, and how it moves towards what came back."""

from __future__ import annotations

from typing import Literal

import torch

WriteBack = Literal["pull", "delta"]


class Replica:
    """The live parameters of a rank, which training may change at any time.

    With W the parameters now, s those that were sent and t the target, `pull` is W += alpha (t - W) and keeps 1 - alpha
    of what W learned since; `delta` is W += alpha (t - s) and keeps all of it. Where nothing was learned they are one.

    Args:
        values: [numel], written in place.
        alpha: how far it moves to a target, in (0, 1].
    """

    def __init__(self, values: torch.Tensor, alpha: float, write_back: WriteBack = "pull") -> None:
        self.values = values
        self._alpha = alpha
        self._write_back = write_back
        self._sent: torch.Tensor | None = None

    def send(self, into: torch.Tensor, *, keep: bool) -> None:
        """Takes a snapshot, which may be torn between elements. `keep`: for `distance`."""
        into.copy_(self.values)
        self._sent = into.clone() if keep or self._write_back == "delta" else None

    def approach(self, target: torch.Tensor) -> None:
        """Moves towards `target`, [numel], in host memory; once for each snapshot."""
        if self._write_back == "pull":
            self.values.lerp_(target.to(self.values.device), self._alpha)
        else:
            assert self._sent is not None, "delta needs the snapshot"
            self.values.add_((target - self._sent).to(self.values.device), alpha=self._alpha)

    def distance(self, other: torch.Tensor) -> float:
        """How far the snapshot, which was kept, is from `other`, over the norm of that."""
        assert self._sent is not None, "the snapshot was not kept"
        norm = torch.linalg.vector_norm
        return float(norm(self._sent - other) / norm(other).clamp_min(torch.finfo(other.dtype).tiny))

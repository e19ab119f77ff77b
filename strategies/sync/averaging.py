"""One round of model averaging: what is sent, and how a replica takes the answer in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

NOTES = 2
"""Numbers that each rank tells all others in a round."""
SPREAD_EVERY = 8
"""Rounds between two measurements of the spread, which cost a pass over the parameters each."""
WriteBack = Literal["pull", "delta"]


class Round:
    """A payload that is summed over ranks: the parameters, then whether this rank trains, wants to stop, and notes.

    A rank that no longer trains sends zeros, so that the mean is of those that do, and stays in the sum: a round needs
    all ranks.

    Args:
        values: [numel], the live parameters.
    """

    def __init__(self, values: torch.Tensor, rank: int, ranks: int) -> None:
        self._values, self._rank, self._ranks = values, rank, ranks
        numel = len(values)
        self.payload = torch.empty(numel + 2 + NOTES * ranks, dtype=values.dtype, pin_memory=values.is_cuda)
        self._numbers = self.payload[:numel]
        self._sent: torch.Tensor | None = None
        self._mean: torch.Tensor | None = None

    def fill(
        self, *, active: bool = True, wants_stop: bool = False, notes: Sequence[float] = (0.0,) * NOTES, keep: bool
    ) -> torch.Tensor:
        """Takes a snapshot of the parameters, which may be torn between elements, and returns the payload to sum.

        `notes`: numbers that all ranks will see. `keep`: keep the snapshot, for `delta` and for `spread`.
        """
        tail = self.payload[len(self._numbers) :].zero_()
        tail[0], tail[1] = float(active), float(wants_stop)
        self.notes[self._rank] = torch.tensor(notes)
        self._numbers.copy_(self._values)
        self._mean = None
        self._sent = self._numbers.clone() if keep else None
        if not active:
            self._numbers.zero_()
        return self.payload

    def take(self, alpha: float, write_back: WriteBack) -> None:
        """After the sum, once: moves the parameters towards the mean of those that train, by `alpha`, in place.

        With W the parameters now, s those that were sent and m their mean over ranks, `pull` is W += alpha (m - W) and
        keeps 1 - alpha of what W learned since; `delta` is W += alpha (m - s) and keeps all of it.
        """
        mean = self.mean()
        if mean is None:
            return
        if write_back == "pull":
            self._values.lerp_(mean.to(self._values.device), alpha)
        else:
            assert self._sent is not None, "delta needs the snapshot"
            self._values.add_((mean - self._sent).to(self._values.device), alpha=alpha)

    def mean(self) -> torch.Tensor | None:
        """[numel], over the ranks that train; None if none does. Formed in the payload, once."""
        if self._mean is None and self.active:
            self._mean = self._numbers.div_(self.active)
        return self._mean

    def spread(self) -> float | None:
        """How far what this rank sent is from the mean, over the norm of the mean; None unless it was kept."""
        mean = self.mean()
        if mean is None or self._sent is None:
            return None
        norm = torch.linalg.vector_norm
        return float(norm(self._sent - mean) / norm(mean).clamp_min(torch.finfo(mean.dtype).tiny))

    @property
    def active(self) -> int:
        """How many ranks train."""
        return round(self._tail[0].item())

    @property
    def all_want_stop(self) -> bool:
        return round(self._tail[1].item()) == self._ranks

    @property
    def notes(self) -> torch.Tensor:
        """[ranks, NOTES]"""
        return self._tail[2:].view(self._ranks, NOTES)

    @property
    def _tail(self) -> torch.Tensor:
        return self.payload[len(self._numbers) :]

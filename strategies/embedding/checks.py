"""Debug mode of prioritised exchange: the two promises that make it exact, checked on every owner in every step."""

from __future__ import annotations

import torch

from fsbench_strategies.embedding.classes import Bits


class ReadAfterWrite:
    """Knows which step each row was last in, and which step's update it last got.

    Raises:
        AssertionError: a row is read for a batch before its last update was written, or a row is in no class or in
            both.
    """

    def __init__(self, rows: int) -> None:
        self._last_in = torch.full((rows,), -1, dtype=torch.int64)
        self._written = torch.full((rows,), -1, dtype=torch.int64)
        self._due: dict[int, torch.Tensor] = {}

    def expect(self, step: int, slots: torch.Tensor, before: torch.Tensor | None, shared: Bits) -> None:
        """Batch `step` asks for `slots`; the batch before it asked for `before`."""
        if before is not None:
            truth = torch.isin(slots, before)
            assert truth.equal(shared.asked), f"step {step}: a row is in the wrong class"
        due = self._last_in.clone()
        self._last_in[slots] = step
        self._due = {step: due, **{s: d for s, d in self._due.items() if s == step - 1}}

    def read(self, step: int, slots: torch.Tensor) -> None:
        late = self._written[slots] != self._due[step][slots]
        assert not late.any(), f"step {step}: row in slot {int(slots[late][0])} is read before its last write"

    def written(self, step: int, slots: torch.Tensor) -> None:
        twice = self._written[slots] >= step
        assert not twice.any(), f"step {step}: row in slot {int(slots[twice][0])} is updated twice"
        self._written[slots] = step

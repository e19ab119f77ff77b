"""Before the first operations of each kind on a lane: do all ranks mean the same? Afterwards it costs nothing.

Ranks that exchange what does not fit train on rubbish, or hang until a limit. So the first of each kind are announced
over the lane's own group, in the lane's own order, and compared: what it is, types and shapes, and for an all-to-all
whether what each rank sends is what its receiver expects. No strategy and no plan is known here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fsbench.errors import FsbenchError

CHECKED = 2
"""Operations of each name and kind."""
_TEXT = 256


@dataclass(frozen=True)
class Meant:
    """An operation that a rank is about to issue.

    `name`: `all_to_all`. `kind`: what its bytes are. `operand`: dtype and shape as text, `float32 [*, 8]`: `*` where
    ranks may differ. `sends`, `receives`: rows by rank, of an all-to-all.
    """

    name: str
    kind: str
    operand: str = ""
    sends: Sequence[int] = ()
    receives: Sequence[int] = ()

    @classmethod
    def of(
        cls, name: str, kind: str, operand: torch.Tensor, splits: tuple[Sequence[int], Sequence[int]] | None
    ) -> Meant:
        """`splits`: rows sent to, and expected of, each rank."""
        shape = list(map(str, operand.shape))
        if splits:
            shape[0] = "*"
        described = f"{str(operand.dtype).removeprefix('torch.')} [{', '.join(shape)}]"
        return cls(name, kind, described, *(splits or ()))

    def __str__(self) -> str:
        return " ".join(filter(None, (self.name, self.kind, self.operand)))

    def encode(self, ranks: int) -> torch.Tensor:
        """uint8 [_TEXT + 16 * ranks]"""
        none = [0] * ranks
        splits = torch.tensor([*(self.sends or none), *(self.receives or none)], dtype=torch.int64)
        text = str(self).encode()[:_TEXT].ljust(_TEXT, b"\0")
        return torch.cat((torch.frombuffer(bytearray(text), dtype=torch.uint8), splits.view(torch.uint8)))


class Matching:
    """The checks of one lane on one rank; who asks gathers what all ranks mean, in the order of the lane."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._seen: Counter[tuple[str, str]] = Counter()

    def due(self, name: str, kind: str) -> bool:
        """Whether the operation that comes now is to be checked; the same on every rank."""
        if self._ranks == 1 or self._seen[name, kind] == CHECKED:
            return False
        self._seen[name, kind] += 1
        return True

    def require(self, lane: str, everyone: torch.Tensor) -> None:
        """`everyone`: uint8 [ranks, m], what each rank has encoded.

        Raises:
            FsbenchError: the first ranks that do not agree and what each of them meant; the same on every rank.
        """
        texts = [bytes(row[:_TEXT].tolist()).rstrip(b"\0").decode(errors="replace") for row in everyone]
        splits = everyone[:, _TEXT:].contiguous().view(torch.int64)
        if fault := _fault(texts, splits[:, : self._ranks], splits[:, self._ranks :]):
            raise FsbenchError(f"lane {lane}: {fault}")


def _fault(texts: Sequence[str], sends: torch.Tensor, receives: torch.Tensor) -> str | None:
    """`sends`, `receives`: int64 [ranks, ranks], what each rank sends to, and expects of, each."""
    for rank, text in enumerate(texts):
        if text != texts[0]:
            return f"ranks do not issue the same operation: rank 0 {texts[0]}, rank {rank} {text}"
    wrong = (sends != receives.t()).nonzero()
    if len(wrong):
        sender, receiver = wrong[0].tolist()
        sent, expected = int(sends[sender, receiver]), int(receives[receiver, sender])
        return f"{texts[0]}: rank {sender} sends {sent} rows to rank {receiver}, which expects {expected}"
    return None

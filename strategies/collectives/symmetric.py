"""Memory that every rank of a group has at the same place, so that copy engines can write and read that of others."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

_c10d: Any = dist.distributed_c10d


class SymmetricBuffer:
    """Bytes in symmetric memory of one lane. It only grows, to powers of two: then all ranks of the group meet, who
    therefore must ask for the same sizes in the same order.

    `symm`: torch's module `torch.distributed._symmetric_memory`.
    """

    def __init__(self, symm: Any, group: Any, device: torch.device) -> None:
        self._symm = symm
        self._group = group
        self._device = device
        self._kept: list[tuple[torch.Tensor, Any]] = []
        """Outgrown ones too, together as much as the largest: copies into them may still be under way."""

    def take(self, size: int) -> tuple[torch.Tensor, Any]:
        """uint8 [size], the first of this rank's, and the handle to those of others. What they hold is undefined."""
        if not self._kept or len(self._kept[-1][0]) < size:
            memory = self._symm.empty(_power_of_two(size), dtype=torch.uint8, device=self._device)
            self._kept.append((memory, self._symm.rendezvous(memory, self._group.group_name)))
        memory, handle = self._kept[-1]
        return memory[:size], handle

    @property
    def bytes(self) -> int:
        return sum(len(memory) for memory, _ in self._kept)


def _power_of_two(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()


def introduce(group: Any, device: torch.device, backend: str) -> Any:
    """Makes symmetric memory know a lane's group; returns torch's module. Collective.

    `backend`: `NCCL`, whose collectives then recognise the memory, or `CUDA`, which maps that of peers. It is one for
    the whole process.
    """
    import torch.distributed._symmetric_memory as symm

    if symm.get_backend(device) != backend:
        symm.set_backend(backend)
    store = dist.PrefixStore(f"symmetric/{group.group_name}", _c10d._get_process_group_store(group))
    symm._SymmetricMemory.set_group_info(group.group_name, group.rank(), group.size(), store)
    # NCCL makes its communicator with the first operation; symmetric memory waits for one for ever.
    dist.all_reduce(torch.zeros(1, device=device), group=group)
    return symm

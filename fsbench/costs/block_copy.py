"""A copy inside a GPU's memory by a given number of thread blocks. Needs triton, which comes with torch for CUDA."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_CHUNK = 8192


@triton.jit
def _copy(target, source, size, chunk: tl.constexpr):  # type: ignore[no-untyped-def]
    first = tl.program_id(0).to(tl.int64) * chunk
    for begin in range(first, size, tl.num_programs(0) * chunk):
        places = begin + tl.arange(0, chunk)
        inside = places < size
        tl.store(target + places, tl.load(source + places, mask=inside), mask=inside)


def copy_by_blocks(target: torch.Tensor, source: torch.Tensor, blocks: int) -> None:
    """uint8 [n], n a multiple of 4, by `blocks` thread blocks, each of which stays on its multiprocessor."""
    words = source.view(torch.int32)
    _copy[(blocks,)](target.view(torch.int32), words, len(words), chunk=_CHUNK, num_warps=16)

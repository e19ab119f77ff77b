"""Kernels of one GPU, alone and beside copies: by thread blocks, or by copy engines inside it and to and from the host.

Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from fsbench.costs.contention import Pair
from fsbench.costs.contention_bench import Copy

_LAUNCHES = 10
"""Of the kernel, between two events."""
_MARGIN = 3
"""Copies are queued for so many times what the kernels take alone."""
_GATE_CYCLES = 100_000_000
"""Some tens of milliseconds: both streams wait behind a sleeping kernel until the host has queued everything."""
_SEQUENCE, _HEADS, _HEAD_DIM, _SIDE = 8192, 16, 128, 8192
_ENGINES = ("d2d", "h2d", "d2h")


class Gpu:
    """See `fsbench.costs.contention_bench.Machine`. `size`: bytes of a copy. `blocks`: to copy with."""

    def __init__(self, device: torch.device, size: int, blocks: Sequence[int]) -> None:
        self._device = device
        self._size = size
        self._kernels = _kernels(device)
        self._compute, self._copying, self._gate = (torch.cuda.Stream(device) for _ in range(3))
        self._buffers = _buffers(device, size)
        self._by_blocks, missing = _block_copy()
        self.kernels = list(self._kernels)
        engines = [Copy(name, 0) for name in _ENGINES]
        self.copies = [*engines, *(Copy("blocks", count, missing) for count in blocks)]
        self._warm_up()

    def _warm_up(self) -> None:
        """What is compiled or set up with the first launch is no part of any timing."""
        movers = [self._mover(copy) for copy in self.copies if copy.reason is None]
        for launch in (*self._kernels.values(), *movers):
            launch()
        torch.cuda.synchronize(self._device)

    def time(self, kernel: str, copy: Copy) -> Pair:
        run, move = self._kernels[kernel], self._mover(copy)
        alone_ms = self._timed(run, lambda: None, 0)[0]
        once_ms = self._timed(lambda: None, move, 1)[1]
        moves = max(1, round(_MARGIN * alone_ms / once_ms))
        beside_ms, copied_ms, left_ms = self._timed(run, move, moves)
        return Pair(alone_ms / 1e3, beside_ms / 1e3, moves * self._size / (copied_ms / 1e3), left_ms >= 0)

    def _mover(self, copy: Copy) -> Callable[[], Any]:
        if copy.blocks:
            source, target = self._buffers["d2d"]
            return lambda: self._by_blocks(target, source, copy.blocks)
        source, target = self._buffers[copy.name]
        return lambda: target.copy_(source, non_blocking=True)

    def _timed(self, run: Callable[[], Any], move: Callable[[], Any], moves: int) -> tuple[float, float, float]:
        """Milliseconds of all launches, of all copies, and from the end of the first to that of the second."""
        opened, begun, ended, copy_begun, copy_ended = (torch.cuda.Event(enable_timing=True) for _ in range(5))
        with torch.cuda.stream(self._gate):
            torch.cuda._sleep(_GATE_CYCLES)
            opened.record(self._gate)
        with torch.cuda.stream(self._copying):
            self._copying.wait_event(opened)
            copy_begun.record(self._copying)
            for _ in range(moves):
                move()
            copy_ended.record(self._copying)
        with torch.cuda.stream(self._compute):
            self._compute.wait_event(copy_begun)
            begun.record(self._compute)
            for _ in range(_LAUNCHES):
                run()
            ended.record(self._compute)
        torch.cuda.synchronize(self._device)
        return begun.elapsed_time(ended), copy_begun.elapsed_time(copy_ended), ended.elapsed_time(copy_ended)


def _kernels(device: torch.device) -> dict[str, Callable[[], Any]]:
    """Attention over one long causal history, and a square matrix product, both of bfloat16."""
    q, k, v = torch.randn(3, 1, _HEADS, _SEQUENCE, _HEAD_DIM, dtype=torch.bfloat16, device=device)
    a, b = torch.randn(2, _SIDE, _SIDE, dtype=torch.bfloat16, device=device)
    product = torch.empty_like(a)
    return {
        "attention": lambda: scaled_dot_product_attention(q, k, v, is_causal=True),
        "gemm": lambda: torch.mm(a, b, out=product),
    }


def _buffers(device: torch.device, size: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """By direction: source and target, uint8 [size]."""
    one, other = torch.zeros(2, size, dtype=torch.uint8, device=device)
    host = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
    return {"d2d": (one, other), "h2d": (host, other), "d2h": (one, host)}


def _block_copy() -> tuple[Callable[[torch.Tensor, torch.Tensor, int], None], str | None]:
    """A copy by a number of thread blocks, as a collective on multiprocessors would; why there is none, or None."""
    try:
        from fsbench.costs.block_copy import copy_by_blocks
    except ImportError as error:
        return lambda target, source, blocks: None, f"needs triton: {error}"
    return copy_by_blocks, None

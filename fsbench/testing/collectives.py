"""What a collectives strategy promises besides exact training: see `fsbench.axes.Collectives`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fsbench.axes import EXCHANGE
from fsbench.testing.case import Case
from fsbench.testing.trial import Trial, opened
from fsbench.testing.verdicts import Fault, on_each_count

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
_ROWS: tuple[tuple[int, ...], ...] = ((), (3,), (2, 5))
_LARGE = 24 * 2**20
"""Bytes from one rank to another: more than any chunk or piece should be."""


@dataclass(frozen=True)
class Move:
    """An exchange: `splits` i64[ranks, ranks], rows from each rank (row) to each rank (column)."""

    name: str
    splits: np.ndarray
    row: tuple[int, ...]
    dtype: torch.dtype

    def sent(self, rank: int) -> torch.Tensor:
        """What a rank sends, whoever asks."""
        shape = (int(self.splits[rank].sum()), *self.row)
        numbers = torch.arange(math.prod(shape), dtype=torch.int32).add_(7 * rank).remainder_(101)
        return numbers.view(shape).to(self.dtype)

    def received(self, rank: int) -> torch.Tensor:
        """What must arrive on a rank."""
        ranks = len(self.splits)
        return torch.cat([self.sent(source).split(self.splits[source].tolist())[rank] for source in range(ranks)])


def moves(ranks: int) -> Iterator[Move]:
    """Splits of all shapes, rows and types."""
    numbers = np.random.default_rng(ranks)
    uneven = numbers.integers(0, 9, (ranks, ranks))
    for dtype in _DTYPES:
        for row in _ROWS:
            yield Move("uneven splits", uneven, row, dtype)
    silent, deaf = uneven.copy(), uneven.copy()
    silent[ranks - 1], deaf[:, 0] = 0, 0
    yield Move("a rank that sends nothing", silent, (3,), torch.float64)
    yield Move("a rank that gets nothing", deaf, (3,), torch.float64)
    yield Move("nothing at all", np.zeros_like(uneven), (3,), torch.float64)
    large = np.ones_like(uneven)
    large[0, ranks - 1] = _LARGE
    yield Move("one large split", large, (), torch.uint8)


def exchange(rank: int, ranks: int, trial: Trial) -> str | None:
    """On a rank: what is wrong with an all-to-all, or None."""
    with opened(rank, ranks, trial) as (trainer, _):
        for move in moves(ranks):
            sent = move.sent(rank)
            received = _start(trainer, move, sent, rank).wait()
            fault = _difference(received, move.received(rank)) or _difference(sent, move.sent(rank), "the operand")
            if fault:
                return f"{move.name}, {move.dtype} rows {list(move.row)}: {fault}"
    return None


def _start(trainer: Any, move: Move, sent: torch.Tensor, rank: int, kind: str = "rows") -> Any:
    there, back = move.splits[rank].tolist(), move.splits[:, rank].tolist()
    return trainer.strategies.collectives.all_to_all(
        trainer.context.lanes[EXCHANGE.name], sent, there, back, largest_split=int(move.splits.max()), kind=kind
    )


def gather_and_reduce(rank: int, ranks: int, trial: Trial) -> tuple[str | None, str | None]:
    """On a rank: what is wrong with an all-gather, and with an all-reduce."""
    with opened(rank, ranks, trial) as (trainer, _):
        collectives, lane = trainer.strategies.collectives, trainer.context.lanes[EXCHANGE.name]
        gathers, reduces = [], []
        for shape in ((), (1,), (7,), (5, 3), (0,), (2**20,)):
            own = [
                torch.arange(int(np.prod(shape)), dtype=torch.float64).view(shape) + source for source in range(ranks)
            ]
            gathered = collectives.all_gather(lane, own[rank].clone(), kind="state").wait()
            gathers.append(_difference(gathered, torch.stack(own), f"of shape {list(shape)}"))
            tensor, total = own[rank].clone(), torch.stack(own).sum(0)
            summed = collectives.all_reduce(lane, tensor, kind="dense").wait()
            reduces += [_difference(tensor, total, "the operand"), _difference(summed, total)]
    return next(filter(None, gathers), None), next(filter(None, reduces), None)


def queue(rank: int, ranks: int, trial: Trial) -> str | None:
    """On a rank: several operations under way at once on one lane, waited for last first; what is wrong, or None."""
    with opened(rank, ranks, trial) as (trainer, _):
        lane = trainer.context.lanes[EXCHANGE.name]
        move = next(moves(ranks))
        lane.log.clear()
        kinds = ("ids", "rows", "gradients")
        handles = [_start(trainer, move, move.sent(rank), rank, kind) for kind in kinds]
        results = [handle.wait() for handle in reversed(handles)]
        recorded = list(dict.fromkeys(kind for _, kind, _ in lane.log.sequence()))
        fault = next(filter(None, (_difference(result, move.received(rank)) for result in results)), None)
    if recorded != list(kinds):
        return f"operations of kinds {', '.join(kinds)} were recorded as {', '.join(recorded) or 'nothing'}"
    return fault


def _difference(found: Any, expected: torch.Tensor, what: str = "the result") -> str | None:
    if not isinstance(found, torch.Tensor) or (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return f"{what} is {_shown(found)}, expected {_shown(expected)}"
    return None if found.equal(expected) else f"{what} has other values than expected"


def _shown(found: Any) -> str:
    return f"{found.dtype}{list(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__


@on_each_count
def check_all_to_all(case: Case, ranks: int) -> None:
    """`all_to_all` brings rows of any type in any splits where they belong, and leaves the operand as it was."""
    _raise_first(ended.result for ended in case.run(exchange, ranks, case.trial()))


@on_each_count
def check_all_gather(case: Case, ranks: int) -> None:
    """`all_gather` stacks what all ranks have, in rank order."""
    _raise_first(ended.result[0] for ended in case.run(gather_and_reduce, ranks, case.trial()))


@on_each_count
def check_all_reduce(case: Case, ranks: int) -> None:
    """`all_reduce` sums over ranks, in place."""
    _raise_first(ended.result[1] for ended in case.run(gather_and_reduce, ranks, case.trial()))


@on_each_count
def check_order(case: Case, ranks: int) -> None:
    """Operations of one lane run in the order in which they were issued, and the recorder is told their kinds."""
    _raise_first(ended.result for ended in case.run(queue, ranks, case.trial()))


def _raise_first(faults: Iterator[str | None]) -> None:
    for rank, fault in enumerate(faults):
        if fault:
            raise Fault(f"rank {rank}: {fault}")


CHECKS = (check_all_to_all, check_all_gather, check_all_reduce, check_order)

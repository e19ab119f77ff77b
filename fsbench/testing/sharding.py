"""What a sharding strategy promises: see `fsbench.axes.Sharding`. Every rank asks it about batches of all shapes."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fsbench.axes import BatchMeta
from fsbench.testing.case import Case
from fsbench.testing.trial import Trial, opened
from fsbench.testing.verdicts import Fault, Skip, on_each_count
from fsbench.train.trainer import Trainer

_ARRAYS = ("costs", "tokens", "bytes", "source", "speeds")
_SHAPES = (
    "no sample",
    "one sample",
    "few",
    "ordinary",
    "one giant",
    "all alike",
    "no cost",
    "uneven sources",
    "speeds",
)


@dataclass(frozen=True)
class Answers:
    """What one rank answered, by batch. `again`: a second instance, after all random states had changed. `wrote`: a
    batch that it wrote to, or None; `drew`: whether torch's random state changed."""

    first: dict[str, NDArray]
    again: dict[str, NDArray]
    wrote: str | None
    drew: bool


def batches(ranks: int) -> dict[str, BatchMeta]:
    """Global batches by what is special about them."""
    return {shape: _batch(shape, step, ranks) for step, shape in enumerate(_SHAPES)}


def _batch(shape: str, step: int, ranks: int) -> BatchMeta:
    numbers = np.random.default_rng(step)
    count = {"no sample": 0, "one sample": 1, "few": ranks - 1}.get(shape, 8 * ranks)
    tokens = np.full(count, 9) if shape == "all alike" else numbers.integers(0, 50, count)
    if shape == "one giant":
        tokens[count // 2] = 10**6
    source = np.arange(count) * ranks // max(count, 1)
    if shape == "uneven sources":
        source = np.sort(numbers.integers(0, ranks, count))
    return BatchMeta(
        costs=tokens.astype(np.float64) * (shape != "no cost"),
        tokens=tokens.astype(np.int64),
        bytes=tokens.astype(np.int64) * 8,
        source=source.astype(np.int32),
        ranks=ranks,
        speeds=1.0 + np.arange(ranks, dtype=np.float64) * (shape == "speeds"),
        token_limit=None,
        step=100 + step,
    )


def ask(rank: int, ranks: int, trial: Trial) -> Answers:
    """On a rank: what the strategy answers about all `batches`."""
    asked = batches(ranks)
    with opened(rank, ranks, trial) as (trainer, _):
        before = torch.get_rng_state()
        first = _answers(trainer, asked)
        drew = not torch.get_rng_state().equal(before)
        wrote = next((shape for shape, batch in asked.items() if not _same(batch, batches(ranks)[shape])), None)
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(rank + 1)
    with opened(rank, ranks, trial) as (trainer, _):
        again = _answers(trainer, batches(ranks))
    return Answers(first, again, wrote, drew)


def _answers(trainer: Trainer, asked: dict[str, BatchMeta]) -> dict[str, NDArray]:
    strategy = trainer.strategies.sharding
    answers = {}
    for shape, batch in asked.items():
        strategy.observe(np.linspace(0.1, 0.2, batch.ranks))
        answers[shape] = strategy.assign(batch)
    return answers


def _same(left: BatchMeta, right: BatchMeta) -> bool:
    return all(np.array_equal(getattr(left, name), getattr(right, name)) for name in _ARRAYS)


def _asked(case: Case, ranks: int) -> list[Answers]:
    try:
        return [ended.result for ended in case.run(ask, ranks, case.trial())]
    except Fault:
        raise Skip("it does not answer: see `partition`") from None


@on_each_count
def check_partition(case: Case, ranks: int) -> None:
    """`assign` gives each sample of any batch exactly one rank that exists, int64[n]; its own if `moves` is False."""
    for ended in case.run(ask, ranks, case.trial()):
        for shape, batch in batches(ranks).items():
            if fault := _partition_fault(ended.result.first[shape], batch, case.strategy.moves):
                raise Fault(f"{shape}: {fault}")


def _partition_fault(answer: NDArray, batch: BatchMeta, moves: bool) -> str | None:
    count = len(batch.source)
    if not isinstance(answer, np.ndarray) or answer.dtype != np.int64 or answer.shape != (count,):
        found = f"{answer.dtype}{list(answer.shape)}" if isinstance(answer, np.ndarray) else type(answer).__name__
        return f"assign returned {found}; expected int64[{count}]"
    if count and not (answer.min() >= 0 and answer.max() < batch.ranks):
        return f"assign returned ranks {answer.min()} to {answer.max()}; valid: 0 to {batch.ranks - 1}"
    if not moves and not np.array_equal(answer, batch.source):
        return "moves is False, yet samples change rank"
    return None


@on_each_count
def check_same_answer(case: Case, ranks: int) -> None:
    """Every rank, and a second instance, gives the same answer: it depends on the batch alone, and changes nothing."""
    everyone = _asked(case, ranks)
    for rank, one in enumerate(everyone):
        for shape, answer in everyone[0].first.items():
            if not np.array_equal(one.first[shape], answer):
                raise Fault(f"{shape}: assign gave rank {rank} another answer than rank 0")
            if not np.array_equal(one.again[shape], one.first[shape]):
                raise Fault(f"{shape}: assign answered differently when it was asked again")
        if one.wrote:
            raise Fault(f"{one.wrote}: assign wrote to the batch")
        if one.drew:
            raise Fault("assign changed torch's random state")


@on_each_count
def check_equal_counts(case: Case, ranks: int) -> None:
    """Ranks get the same number of samples, give or take one, if `equal_counts` says so."""
    if not case.strategy.equal_counts:
        raise Skip("it does not claim to (`equal_counts` is False)")
    for shape, answer in _asked(case, ranks)[0].first.items():
        counts = np.bincount(answer, minlength=ranks)
        if counts.max() - counts.min() > 1:
            raise Fault(f"{shape}: ranks get {counts.tolist()} samples")


CHECKS = (check_partition, check_same_answer, check_equal_counts)

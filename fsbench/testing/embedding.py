"""What an embedding strategy promises besides exact training: see `fsbench.axes.EmbeddingExchange`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fsbench.axes import DEFAULTS
from fsbench.testing.case import Case
from fsbench.testing.exercise import TableKinds
from fsbench.testing.pool import shared_pool
from fsbench.testing.totals import check_totals
from fsbench.testing.trial import Trial, opened
from fsbench.testing.verdicts import Fault, on_each_count

State = dict[str, NDArray]
"""Logical tables and optimizer state: [rows, ...] by `table.name`."""


@dataclass(frozen=True)
class Tables:
    """What `state_dict` gave on one rank: at first; then after `load_state_dict` of `given`, values of ours."""

    initial: State
    given: State
    loaded: State


def show_tables(rank: int, ranks: int, trial: Trial) -> Tables:
    """On a rank: what the strategy says its tables are."""
    with opened(rank, ranks, trial) as (trainer, _):
        embedding = trainer.strategies.embedding
        initial = embedding.state_dict()
        generator = torch.Generator().manual_seed(1)
        given = {
            table: {name: torch.rand(tensor.shape, generator=generator).to(tensor) for name, tensor in parts.items()}
            for table, parts in initial.items()
        }
        kept = {table: {name: tensor.clone() for name, tensor in parts.items()} for table, parts in given.items()}
        embedding.load_state_dict(given)
        tables = Tables(_flat(initial), _flat(kept), _flat(embedding.state_dict()))
    return tables


def _flat(state: dict[str, dict[str, torch.Tensor]]) -> State:
    return {
        f"{table}.{name}": tensor.numpy().copy() for table, parts in state.items() for name, tensor in parts.items()
    }


@on_each_count
def check_tables(case: Case, ranks: int) -> None:
    """`state_dict` has the whole logical tables on every rank, drawn as `TableSpec` says; loading brings them back."""
    drawn: State = _reference_tables(case.kinds)
    for rank, ended in enumerate(case.run(show_tables, ranks, case.trial())):
        tables: Tables = ended.result
        _check_same(tables.initial, drawn, f"rank {rank}: state_dict", "what `TableSpec` and the seed give")
        _check_same(tables.loaded, tables.given, f"rank {rank}: state_dict after load_state_dict", "what was loaded")


def _reference_tables(kinds: TableKinds) -> State:
    """Those of one rank of the reference cell."""
    trial = Trial("embedding", DEFAULTS["embedding"], kinds=kinds)
    (tables,) = shared_pool().run(show_tables, 1, trial)
    return tables.initial


def _check_same(found: State, expected: State, whose: str, what: str) -> None:
    if found.keys() != expected.keys():
        raise Fault(f"{whose} has {', '.join(sorted(found))}; expected {', '.join(sorted(expected))}")
    for name, values in expected.items():
        if found[name].shape != values.shape:
            raise Fault(f"{whose}: {name} is of shape {found[name].shape}; expected {values.shape}")
        if not np.array_equal(found[name], values):
            raise Fault(f"{whose}: {name} is not {what}")


@on_each_count
def check_apart(case: Case, ranks: int) -> None:
    """It trains beside `none` too; there ranks load apart, and meet nowhere, if `needs_totals` is False."""
    case.trained(ranks)
    case.train(ranks, case.trial(sync="none"))


CHECKS = (check_tables, check_totals, check_apart)

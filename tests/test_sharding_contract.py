"""What every sharding keeps, whatever the batch: the same properties over all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench.options import Spec
from fsbench.plugins import find_plugins
from tests.balancing import batch_of, batches, counts, of_lengths, seconds, sharding, tokens

EQUAL = ("snake", "karmarkar-karp", "lpt", "cost-aware")
FREE = ("variable-batch", "variable-batch:alpha=2,eta=0", "lpt:counts=free", "cost-aware:counts=free")
STAYING = ("naive", "local-pairs")
ALL = (*EQUAL, *FREE, *STAYING)


def test_every_sharding_of_this_suite_is_held_to_its_contract_here():
    installed = {plugin.name for plugin in find_plugins("sharding") if plugin.distribution == "fsbench"}
    assert installed == {Spec.parse(name).name for name in ALL}


@pytest.mark.parametrize("name", ALL)
@given(batch=batches())
def test_every_sample_gets_one_rank(name, batch):
    assignment = sharding(name).assign(batch)
    assert assignment.dtype == np.int64
    assert assignment.shape == batch.costs.shape
    assert ((assignment >= 0) & (assignment < batch.ranks)).all()


@pytest.mark.parametrize("name", EQUAL)
@given(batch=batches())
def test_equal_counts_differ_by_one_at_most(name, batch):
    found = counts(sharding(name).assign(batch), batch)
    assert found.max() - found.min() <= 1


@pytest.mark.parametrize("name", STAYING)
@given(batch=batches())
def test_nothing_moves_where_nothing_is_to_move(name, batch):
    strategy = sharding(name)
    assert not strategy.moves
    assert np.array_equal(strategy.assign(batch), batch.source)


@pytest.mark.parametrize("name", ALL)
@given(batch=batches(), other=batches(), times=st.lists(st.floats(1e-3, 10), min_size=6, max_size=6))
def test_the_answer_depends_on_the_batch_and_on_the_observed_times_alone(name, batch, other, times):
    first, second = sharding(name), sharding(name)
    first.assign(other)
    for strategy in (first, second):
        strategy.observe(np.array(times[: batch.ranks]))
    assert np.array_equal(first.assign(batch), second.assign(replace(batch, step=99)))


@pytest.mark.parametrize("name", ALL)
@given(batch=batches())
def test_a_limit_that_is_out_of_reach_changes_nothing(name, batch):
    everything = int(batch.tokens.sum())
    limited = sharding(name).assign(replace(batch, token_limit=everything))
    assert np.array_equal(limited, sharding(name).assign(batch))


@pytest.mark.parametrize("name", ALL)
@given(batch=batches(), limit=st.integers(0, 30_000))
def test_a_token_limit_is_kept_or_refused_with_step_rank_and_a_limit_that_would_do(name, batch, limit):
    limited = replace(batch, token_limit=limit)
    try:
        assignment = sharding(name).assign(limited)
    except ValueError as refusal:
        words = str(refusal).replace(";", "").split()
        assert words[:3] == ["step", "7:", "rank"]
        wanted = int(words[words.index("do,") - 2])
        assert wanted > limit
        roomier = replace(batch, token_limit=wanted)
        assert tokens(sharding(name).assign(roomier), roomier).max() <= wanted
    else:
        assert tokens(assignment, batch).max(initial=0) <= limit


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("cost", [-1.0, np.nan, np.inf])
def test_an_impossible_cost_is_refused_with_the_index_of_its_sample(name, cost):
    with pytest.raises(ValueError, match=rf"step 7: cost {cost} of sample 3 is not finite and >= 0"):
        sharding(name).assign(batch_of([1, 1, 1, cost, -2, 1], ranks=2))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("speed", [0.0, -1.0, np.nan, np.inf])
def test_an_impossible_speed_is_refused_with_its_rank(name, speed):
    with pytest.raises(ValueError, match=rf"step 7: speed {speed} of rank 1 is not finite and > 0"):
        sharding(name).assign(batch_of([1, 2], ranks=2, speeds=[1.0, speed]))


@pytest.mark.parametrize("name", [*EQUAL, *FREE])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 7])
def test_batches_too_small_or_not_divisible_are_spread_as_far_as_they_go(name, n):
    found = counts(sharding(name).assign(of_lengths(np.arange(n) + 1, ranks=3)), batch_of([], 3))
    assert found.sum() == n
    assert (found > 0).sum() == min(n, 3)


@pytest.mark.parametrize("name", [*EQUAL, *FREE])
@pytest.mark.parametrize("length", [0, 9])
def test_samples_all_alike_are_split_evenly(name, length):
    found = counts(sharding(name).assign(of_lengths([length] * 24, ranks=4)), batch_of([], 4))
    assert found.tolist() == [6] * 4


@pytest.mark.parametrize("name", ALL)
def test_one_rank_gets_everything(name):
    assert sharding(name).assign(of_lengths([3, 1, 2], ranks=1)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", ["karmarkar-karp", "lpt", "lpt:counts=free", "cost-aware", "cost-aware:counts=free"])
def test_a_giant_alone_decides_how_long_the_step_takes(name):
    batch = batch_of([1.0] * 15 + [1000.0] + [1.0] * 16, ranks=4)
    assert seconds(sharding(name).assign(batch), batch).max() <= 1007


DIGESTS = """
import hashlib, json, sys
from tests.test_sharding_contract import ALL, long_tailed, sharding
def digest(name):
    strategy = sharding(name)
    answers = []
    for seed in range(3):
        batch = long_tailed(seed)
        strategy.observe(batch.speeds * (1 + seed))
        answers.append(strategy.assign(batch).tobytes())
    return hashlib.blake2b(b"".join(answers)).hexdigest()
json.dump({name: digest(name) for name in ALL}, sys.stdout)
"""


def long_tailed(seed, ranks=16, each=32):
    """Long histories of every length, and ranks of different speed."""
    rng = np.random.default_rng(seed)
    lengths = np.rint(rng.lognormal(4, 1.3, ranks * each)).clip(1, 3000)
    return of_lengths(lengths, ranks, speeds=np.repeat([1.0, 0.7], ranks // 2))


def answers_elsewhere(**environment):
    """Digests of every strategy's answers, in a process of its own."""
    command = [sys.executable, "-c", DIGESTS]
    result = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=50, check=True
    )
    return json.loads(result.stdout)


def test_other_processes_and_cpus_with_fewer_vector_units_give_the_same_answers():
    """What a CPU adds eight at a time, another adds four at a time: only sums in one order come out alike."""
    simd = np.show_config(mode="dicts")["SIMD Extensions"]["found"]
    here = answers_elsewhere(PYTHONHASHSEED="1")
    assert answers_elsewhere(PYTHONHASHSEED="2", NPY_DISABLE_CPU_FEATURES=" ".join(simd)) == here
    assert len(set(here.values())) > 5

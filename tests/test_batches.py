"""`BalancedBatches`: what a rank trains, from (seed, epoch, lengths) alone."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench import BalancedBatches, transformer_cost
from fsbench.axes import Sharding
from fsbench.errors import FsbenchError, Unsupported, UserError
from fsbench.plugins import find_plugins, load_plugin
from fsbench_strategies.sharding.cost_aware import CostAware
from fsbench_strategies.sharding.lpt import LPT
from tests.support import AllOnOne

SHARDINGS = [
    plugin.name
    for plugin in find_plugins("sharding")
    if plugin.distribution == "fsbench" and "reads" not in vars(load_plugin("sharding", plugin.name).cls)
]
LENGTHS = np.ceil(np.random.default_rng(0).gamma(0.78, 610, 100)).astype(np.int64)


def on(rank, ranks, lengths=LENGTHS, each=4, **options):
    return BalancedBatches(range(len(lengths)), lengths, ranks=ranks, rank=rank, samples_per_rank=each, **options)


def epochs_of(ranks, **options):
    """The batches of every rank: lists of indices, [rank][batch]."""
    return [list(on(rank, ranks, **options)) for rank in range(ranks)]


def loads(batches, costs):
    return np.array([[costs[mine].sum() for mine in batches.by_rank(k)] for k in range(len(batches))])


class Seen(Sharding):
    """Keeps what it is shown, and moves nothing."""

    def __init__(self):
        super().__init__()
        self.metas = []

    def assign(self, batch):
        self.metas.append(batch)
        return batch.source.astype(np.int64)


cases = st.fixed_dictionaries(
    {
        "lengths": st.lists(st.integers(0, 3000), max_size=60).map(lambda values: np.array(values, np.int64)),
        "each": st.integers(1, 5),
        "sharding": st.sampled_from(SHARDINGS),
        "shuffle": st.booleans(),
        "seed": st.integers(0, 9),
        "cost": st.sampled_from([None, transformer_cost(16)]),
    }
)


@given(st.integers(1, 5), cases)
def test_together_the_ranks_train_every_sample_of_an_epoch_once(ranks, case):
    epochs = epochs_of(ranks, **case)
    trained = [i for rank in epochs for batch in rank for i in batch]
    assert sorted(trained) == list(range(len(case["lengths"])))


@given(st.integers(1, 5), cases)
def test_drop_last_leaves_out_what_does_not_fill_a_global_batch_and_nothing_else(ranks, case):
    epochs = epochs_of(ranks, drop_last=True, **case)
    trained = [i for rank in epochs for batch in rank for i in batch]
    whole = len(case["lengths"]) // (ranks * case["each"])
    assert len(set(trained)) == len(trained) == whole * ranks * case["each"]
    assert [len(rank) for rank in epochs] == [whole] * ranks


@given(st.integers(1, 5), cases, st.booleans())
def test_every_rank_takes_as_many_steps_as_len_says(ranks, case, drop_last):
    length = len(on(0, ranks, drop_last=drop_last, **case))
    assert [len(batches) for batches in epochs_of(ranks, drop_last=drop_last, **case)] == [length] * ranks


@given(st.integers(1, 5), cases)
def test_without_shuffle_a_global_batch_is_the_next_samples_in_the_order_of_the_data(ranks, case):
    case["shuffle"] = False
    size = ranks * case["each"]
    for k, batches in enumerate(zip(*epochs_of(ranks, **case), strict=True)):
        expected = range(k * size, min((k + 1) * size, len(case["lengths"])))
        assert sorted(i for mine in batches for i in mine) == list(expected)
        assert all(mine == sorted(mine) for mine in batches)


@given(st.integers(1, 5), cases)
def test_any_rank_can_tell_what_every_rank_trains(ranks, case):
    epochs, observer = epochs_of(ranks, **case), on(ranks - 1, ranks, **case)
    for k in range(len(observer)):
        assert [mine.tolist() for mine in observer.by_rank(k)] == [rank[k] for rank in epochs]


@given(st.integers(1, 5), cases, st.data())
def test_a_resumed_epoch_goes_on_where_it_stopped_and_the_next_begins_at_its_start(ranks, case, data):
    whole = on(0, ranks, **case)
    whole.set_epoch(3)
    trained = data.draw(st.integers(0, len(whole)))
    resumed = on(0, ranks, **case)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict(trained))))
    assert (resumed.epoch, resumed.first) == (3, trained)
    resumed.set_epoch(3)  # as a loop over epochs does
    assert list(resumed) == list(whole)[trained:]
    whole.set_epoch(4)
    resumed.set_epoch(4)
    assert list(resumed) == list(whole)


@pytest.mark.parametrize("state", [None, {}, {"epoch": 0, "trained": 1}])
def test_a_state_of_something_else_is_refused(state):
    with pytest.raises(UserError, match=r"the state to resume has no .*; expected what state_dict"):
        on(0, 2).load_state_dict(state)


def test_costs_are_made_of_lengths_that_no_narrow_type_wraps():
    lengths = np.array([3, 200, 250, 90], np.uint8)
    narrow, wide = (
        BalancedBatches("abcd", values, ranks=2, rank=0, samples_per_rank=2, cost=lambda length: length * length)
        for values in (lengths, lengths.astype(np.int64))
    )
    assert narrow.fingerprint == wide.fingerprint
    assert list(narrow) == list(wide)


def test_fingerprints_tell_strategies_by_their_options_and_numbers_by_their_values():
    def of(sharding="lpt", **more):
        return BalancedBatches("abcd", [1, 2, 3, 4], samples_per_rank=2, rank=0, sharding=sharding, **more).fingerprint

    assert of(ranks=2) == of(ranks=np.int64(2)) == of(LPT(), ranks=2)
    assert of(ranks=2, shuffle=True) == of(ranks=2, shuffle=1)
    assert of(ranks=2) != of("lpt:counts=free", ranks=2)
    assert of("lpt:counts=free", ranks=2) == of(LPT(LPT.Options(counts="free")), ranks=2)


def test_shuffled_epochs_differ_by_seed_and_epoch_and_by_nothing_else():
    def members(seed, epoch):
        batches = on(0, 2, shuffle=True, seed=seed)
        batches.set_epoch(epoch)
        return [sorted(np.concatenate(batches.by_rank(k))) for k in range(len(batches))]

    assert members(1, 0) == members(1, 0)
    assert members(1, 0) != members(1, 1)
    assert members(1, 0) != members(2, 0)


def test_an_iteration_under_way_is_not_disturbed_by_set_epoch():
    batches, expected = on(0, 2, shuffle=True), list(on(0, 2, shuffle=True))
    under_way = iter(batches)
    first = next(under_way)
    batches.set_epoch(1)
    assert [first, *under_way] == expected
    assert list(batches) != expected


PRINT_EPOCH = """
import numpy as np
from fsbench import BalancedBatches, transformer_cost
lengths = np.ceil(np.random.default_rng(0).gamma(0.78, 610, 100)).astype(np.int64)
print(list(BalancedBatches(range(100), lengths, ranks=3, rank=1, samples_per_rank=4, shuffle=True, seed=5,
                           cost=transformer_cost(64))))
"""


def test_another_process_computes_the_same_batches():
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    printed = subprocess.run([sys.executable, "-c", PRINT_EPOCH], capture_output=True, check=True, env=environment)
    assert json.loads(printed.stdout) == list(on(1, 3, shuffle=True, seed=5, cost=transformer_cost(64)))


def test_ranks_that_agree_have_one_fingerprint_in_every_epoch():
    prints = {on(rank, 3, shuffle=True).fingerprint for rank in range(3)}
    later = on(0, 3, LENGTHS.astype(np.float64), shuffle=True, cost=LENGTHS)
    later.set_epoch(7)
    assert prints == {later.fingerprint}


@pytest.mark.parametrize(
    "other",
    [
        {"cost": np.nextafter(LENGTHS, np.inf)},  # as two CPUs may compute a power
        {"lengths": np.append(LENGTHS[:-1], 1)},
        {"sharding": "naive"},
        {"seed": 1},
        {"shuffle": True},
        {"each": 5},
        {"drop_last": True},
        {"speeds": [1, 2]},
        {"token_limit": 10**6},
    ],
    ids=lambda other: next(iter(other)),
)
def test_ranks_that_would_train_by_different_plans_have_different_fingerprints(other):
    assert on(0, 2).fingerprint != on(0, 2, **other).fingerprint


def test_the_shuffled_order_is_pinned_so_that_no_release_of_numpy_or_fsbench_changes_it_unseen():
    batches = on(0, 1, np.ones(8), each=8, shuffle=True, seed=1)
    assert next(iter(batches)) == [2, 4, 7, 5, 0, 6, 3, 1]


def test_importing_fsbench_loads_neither_numpy_nor_torch_and_balanced_batches_need_no_torch():
    code = (
        "import sys, fsbench; assert not {'numpy', 'torch'} & set(sys.modules); "
        "fsbench.BalancedBatches([1, 2], [1, 2], ranks=1, rank=0, samples_per_rank=1); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_fsbench_has_no_other_names_to_import():
    import fsbench

    with pytest.raises(AttributeError, match="no attribute 'BalancedBatch'"):
        fsbench.BalancedBatch  # noqa: B018


@pytest.mark.parametrize("ranks", [2, 8])
def test_ranks_of_equal_counts_get_nearly_equal_costs(ranks):
    cost = transformer_cost(64)
    balanced = on(0, ranks, each=8, cost=cost, drop_last=True)
    for k in range(len(balanced)):
        assert [len(mine) for mine in balanced.by_rank(k)] == [8] * ranks
        rising = np.sort(cost(LENGTHS)[np.concatenate(balanced.by_rank(k))])
        giant = rising[-1] + rising[:7].sum()  # its rank trains seven more
        assert loads(balanced, cost(LENGTHS))[k].max() <= 1.01 * max(rising.sum() / ranks, giant)


def test_the_last_global_batch_is_spread_evenly_over_the_ranks():
    assert [len(mine) for mine in on(0, 3, each=4).by_rank(8)] == [2, 1, 1]  # 100 = 8 * 12 + 4
    assert [len(mine) for mine in on(0, 3, each=4, sharding="naive").by_rank(8)] == [2, 1, 1]


def test_with_fewer_samples_left_than_ranks_some_ranks_train_an_empty_batch():
    assert [list(on(rank, 3, np.ones(1))) for rank in range(3)] == [[[0]], [[]], [[]]]


def test_a_strategy_of_free_counts_may_leave_ranks_empty():
    epochs = epochs_of(2, lengths=np.ones(10), each=3, sharding=AllOnOne(1))
    assert epochs == [[[], []], [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]]]


def test_faster_ranks_get_more_work():
    batches = on(0, 2, each=32, speeds=[1, 3], drop_last=True)
    slow, fast = loads(batches, LENGTHS)[0]
    assert fast == pytest.approx(3 * slow, rel=0.01)


def test_a_strategy_sees_global_batches_in_order_of_arrival_as_if_each_rank_had_read_its_share():
    seen = Seen()
    batches = on(0, 2, np.array([3.5, 2, 1, 4, 7]), each=2, sharding=seen, cost=np.square, speeds=[1, 2], token_limit=9)
    batches.set_epoch(1)
    list(batches)
    first, last = seen.metas
    assert first.costs.tolist() == [12.25, 4, 1, 16]
    assert first.tokens.tolist() == [4, 2, 1, 4]
    assert first.source.tolist() == [0, 0, 1, 1]
    assert (first.ranks, first.speeds.tolist(), first.token_limit) == (2, [0.5, 1], 9)
    assert last.source.tolist() == [0]
    assert [meta.step for meta in seen.metas] == [2, 3]  # steps run on over the epochs


def test_a_strategy_is_told_that_nothing_has_to_be_sent():
    seen = Seen()
    list(on(0, 2, sharding=seen))
    assert not any(meta.bytes.any() for meta in seen.metas)


def test_lengths_come_from_a_function_of_a_sample_called_once_for_each():
    data, called = ["a", "bbb", "cc"], []

    def length(sample):
        called.append(sample)
        return len(sample)

    seen = Seen()
    batches = BalancedBatches(data, length, ranks=1, rank=0, samples_per_rank=3, sharding=seen)
    assert list(batches) == list(batches) == [[0, 1, 2]]
    assert called == data
    assert seen.metas[0].costs.tolist() == seen.metas[0].tokens.tolist() == [1, 3, 2]


def test_the_cost_of_a_transformer_counts_projections_and_attention():
    assert transformer_cost(dim=2)(np.array([0, 1, 10])).tolist() == [0, 24 * 4 + 4 * 2, 24 * 4 * 10 + 4 * 2 * 100]


def test_counts_are_of_all_ranks_and_one_target_a_sample_unless_told():
    batches = on(0, 3)
    assert batches.counts(0) == (12, 12)
    assert batches.counts(8) == (4, 4)


@pytest.mark.parametrize("targets", [LENGTHS - 1, lambda lengths: lengths - 1], ids=["array", "function"])
def test_targets_are_counted_over_the_samples_of_every_rank(targets):
    batches = on(1, 3, targets=targets, shuffle=True)
    batches.set_epoch(2)
    for k in range(len(batches)):
        members = np.concatenate(batches.by_rank(k))
        assert batches.counts(k) == (len(members), (LENGTHS[members] - 1).sum())


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
@pytest.mark.parametrize("argument", ["length", "cost", "targets"])
def test_numbers_that_are_negative_or_not_finite_are_refused_with_their_sample(argument, bad):
    numbers = np.array([1.0, 2.0, bad, 3.0])
    options = {} if argument == "length" else {argument: numbers}
    with pytest.raises(UserError, match=rf"^{argument} {bad} of sample 2 is not finite and >= 0$"):
        on(0, 2, numbers if argument == "length" else np.ones(4), **options)


def test_what_a_function_makes_of_a_length_is_checked_too():
    with pytest.raises(UserError, match="cost -inf of sample 1"), np.errstate(divide="ignore"):
        on(0, 2, np.array([3, 0]), cost=np.log)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 0}, "ranks is 0; expected at least 1"),
        ({"rank": 2}, "rank is 2; expected 0 to 1"),
        ({"rank": -1}, "rank is -1; expected at least 0"),
        ({"samples_per_rank": 0}, "samples_per_rank is 0; expected at least 1"),
        ({"seed": -1}, "seed is -1; expected at least 0"),
        ({"ranks": 2.0}, "ranks is 2.0; expected a whole number, at least 1"),
        ({"samples_per_rank": "2"}, "samples_per_rank is '2'; expected a whole number"),
        ({"token_limit": 0}, "token_limit is 0; expected at least 1"),
        ({"token_limit": float("nan")}, "token_limit is nan; expected a whole number"),
        ({"speeds": [1, 0]}, r"speeds are \[1, 0\]; expected 2 finite numbers > 0"),
        ({"speeds": "fast"}, "speeds are 'fast'; expected 2 finite numbers"),
        ({"speeds": [1e308, 1e-308]}, "the slowest is too slow beside the fastest"),
        ({"targets": [1, 0.5, 1]}, "targets 0.5 of sample 1 is not a whole number"),
        ({"targets": np.full(3, 2**60, np.uint64)}, "targets 1152921504606846976 of sample 0 is not a whole number of"),
        ({"sharding": None}, "sharding is NoneType; expected the name of a strategy"),
        ({"sharding": "cost-aware:token_limit=10"}, "token_limit=10 is for fsbench run; give cost=, speeds= or token"),
        ({"sharding": CostAware(CostAware.Options(speeds="measured"))}, "speeds=measured is for fsbench run"),
        ({"speeds": [1, 1, 1]}, "expected 2 finite numbers > 0, one a rank"),
        ({"lengths": [1, 2]}, r"length: got int64 of shape \(2,\); expected 3 numbers, one a sample"),
        ({"lengths": ["a", "b", "c"]}, "expected 3 numbers"),
        ({"lengths": [1, 2, 1e20]}, "length 1e[+]20 of sample 2 is above 2[*][*]53"),
        ({"cost": lambda lengths: lengths.sum()}, r"cost: got float64 of shape \(\); expected 3 numbers"),
        ({"sharding": "naive:costs=profile"}, "sharding naive:costs=profile: costs=profile is for fsbench run; give"),
        ({"sharding": "cost-awar"}, "unknown sharding strategy 'cost-awar'; did you mean cost-aware"),
        ({"data": (i for i in range(3))}, "generator is no map-style data set: balancing needs len.. and .index."),
        ({"data": {1, 2, 3}}, "set is no map-style data set"),
    ],
)
def test_impossible_arguments_are_refused_in_a_line_that_says_what_is_expected(arguments, message):
    possible = {"data": "abc", "lengths": [1, 2, 3], "ranks": 2, "rank": 0, "samples_per_rank": 2}
    with pytest.raises(UserError, match=message):
        BalancedBatches(**{**possible, **arguments})


def test_an_epoch_below_0_is_refused():
    with pytest.raises(UserError, match="epoch is -1"):
        on(0, 2).set_epoch(-1)


@pytest.mark.parametrize("k", [-1, 13])
def test_a_batch_that_is_not_in_the_epoch_is_refused(k):
    for method in (on(0, 2).by_rank, on(0, 2).counts):
        with pytest.raises(UserError, match=f"there is no batch {k}: an epoch has 13"):
            method(k)


def test_more_batches_than_an_epoch_has_cannot_have_been_trained():
    with pytest.raises(UserError, match="trained is 14; expected 0 to 13"):
        on(0, 2).state_dict(14)


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"seed": 2}, "the state to resume has seed=0, these batches have seed=2"),
        ({"shuffle": True}, "shuffle=False, these batches have shuffle=True"),
        ({"each": 8}, "global_batch=8, these batches have global_batch=16"),
        ({"lengths": LENGTHS[:50]}, "samples=100, these batches have samples=50"),
    ],
)
def test_a_state_about_another_order_of_samples_is_refused_and_says_what_differs(options, difference):
    with pytest.raises(UserError, match=difference):
        on(0, 2, **options).load_state_dict(on(0, 2).state_dict(3))


def test_more_ranks_may_resume_the_same_global_batches():
    resumed = on(3, 4, each=2)
    resumed.load_state_dict(on(0, 2, each=4).state_dict(5))
    assert len(list(resumed)) == 13 - 5


def test_a_strategy_that_cannot_run_here_is_refused_with_its_reason():
    class Quantum(Seen):
        def requirements(self):
            return "needs a quantum computer, found none"

    with pytest.raises(Unsupported, match="needs a quantum computer"):
        on(0, 2, sharding=Quantum())


def test_a_strategy_that_trains_samples_in_another_batch_than_they_came_in_is_refused():
    class Later(Seen):
        def reads(self, loader):
            return loader

    with pytest.raises(UserError, match="sharding Later changes which samples are in a global batch; here they stay"):
        on(0, 2, sharding=Later())


class Answers(Sharding):
    """Assigns what it is told to."""

    def __init__(self, answer, moves=True):
        super().__init__()
        self.answer, self.moves = answer, moves

    def assign(self, batch):
        return np.asarray(self.answer)


@pytest.mark.parametrize(
    ("strategy", "fault"),
    [
        (Answers([0.0, 0.0, 1.0]), "assign returned float64; expected int64 ranks"),
        (Answers([0, 0]), r"assign returned shape \(2,\) for 3 samples"),
        (Answers([0, 2, 1]), "assign returned ranks 0 to 2; valid: 0 to 1"),
        (Answers([-1, 0, 1]), "assign returned ranks -1 to 1; valid: 0 to 1"),
        (Answers([1, 0, 1], moves=False), "moves is False, yet samples change rank"),
    ],
)
def test_a_wrong_answer_of_a_strategy_is_an_error_that_names_it(strategy, fault):
    with pytest.raises(FsbenchError, match=f"sharding Answers, step 0: {fault}"):
        list(on(0, 2, np.ones(3), sharding=strategy))


def test_data_without_samples_has_no_batches():
    assert list(on(0, 2, np.ones(0))) == []

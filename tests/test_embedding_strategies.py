"""What embedding strategies leave behind: exact ones the bits of `plain`, others rows that lack what they say."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from fsbench.errors import UserError
from fsbench.options import Spec
from fsbench.plugins import create
from tests import support
from tests.scripted import OPTIMIZERS, assert_same_bits, train_scripted

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]

EXACT = [
    "plain:prefetch=1",
    "prioritized:check=true",
    "hot-first:check=true",
    "hot-first:check=true,renew=3,coverage=0.5,decay=0",
]
STALE = {
    "prefetch-stale": 1,
    "hot-first:check=true,staleness=1": 1,
    "hot-first:check=true,staleness=4": 4,
    "hot-first:check=true,staleness=3,renew=7": 3,
}
SCRIPTS = ["disjoint", "same", "one_row", "all_equal", "returning", "sparse_samples", "drifting", "varied"]


@pytest.fixture(scope="module")
def plain(ranks):
    """`plain(function, n, *args)`: what `plain` leaves, trained once for all that are compared with it."""
    return functools.cache(lambda function, count, *args: ranks.run(function, count, "plain", *args, limit_s=60))


@pytest.mark.parametrize("embedding", EXACT)
@pytest.mark.parametrize(
    ("script", "tables", "optimizer"),
    [*((script, 2, "lazy-adam") for script in SCRIPTS), *(("varied", 1, optimizer) for optimizer in OPTIMIZERS)],
)
def test_any_pattern_of_popularity_is_bit_equal_to_plain(ranks, plain, script, optimizer, tables, embedding):
    ours = ranks.run(train_scripted, 3, embedding, script, tables, optimizer, 18)
    for one, reference in zip(ours, plain(train_scripted, 3, script, tables, optimizer, 18), strict=True):
        assert_same_bits(one, reference)


@pytest.mark.parametrize(("count", "optimizer"), [(2, "sgd"), (3, "rowwise-adagrad"), (2, "lazy-adam")])
@pytest.mark.parametrize("embedding", EXACT)
def test_fifty_steps_of_real_histories_are_bit_equal_to_plain(ranks, plain, embedding, count, optimizer):
    workload = support.with_options(support.TINY_LONG, table_optimizer=optimizer, items=300, max_len=60)
    ours = ranks.run(train_histories, count, embedding, workload, 50, limit_s=60)
    for one, reference in zip(ours, plain(train_histories, count, workload, 50), strict=True):
        assert_same_bits(one, reference)


@pytest.mark.slow
def test_four_ranks_are_bit_equal_to_plain():
    from fsbench.testing.pool import RankPool

    four = RankPool(4)
    names = ("plain", "plain:prefetch=1", "prioritized:check=true", "hot-first:check=true")
    trained = {name: four.run(train_scripted, 4, name, "drifting", 2, "lazy-adam", 24, limit_s=60) for name in names}
    four.close()
    for rank, reference in enumerate(trained.pop("plain")):
        for ours in trained.values():
            assert_same_bits(ours[rank], reference)


def train_histories(rank, ranks, embedding, workload, steps):
    from fsbench.train.driver import Driver
    from fsbench.train.trainer import close_trainer
    from tests.scripted import left_behind

    trainer = support.open_cell(rank, ranks, workload, sharding="cost-aware", embedding=embedding)
    driver = Driver(trainer, 0, steps)
    driver.run()
    left = left_behind(trainer, driver)
    close_trainer(trainer)
    return left


@pytest.mark.parametrize("embedding", [*EXACT, *STALE])
def test_pooled_features_of_a_shared_table_and_tables_of_other_widths(ranks, plain, embedding):
    """Two features, summed and averaged, look up one table; a third looks up another of another width."""
    ours = ranks.run(train_pooled, 2, embedding)
    for one, reference in zip(ours, plain(train_pooled, 2), strict=True):
        assert {name: values.shape for name, values in one["tables"].items()} == {
            "shared.weight": (60, 4),
            "shared.sum": (60,),
            "wide.weight": (60, 7),
            "wide.sum": (60,),
        }
        if embedding in STALE:
            assert all(np.isfinite(values).all() for values in one["tables"].values())
        else:
            assert_same_bits(one, reference)


def train_pooled(rank, ranks, embedding):
    from fsbench.train.driver import Driver
    from fsbench.train.trainer import close_trainer
    from tests.scripted import Pooled, left_behind

    trainer = support.open_workload(rank, ranks, Pooled(), embedding=embedding)
    driver = Driver(trainer, 0, 15)
    driver.run()
    left = left_behind(trainer, driver)
    close_trainer(trainer)
    return left


@pytest.mark.parametrize("embedding", EXACT)
def test_batches_that_need_no_row_of_a_table_are_bit_equal_to_plain(ranks, plain, embedding):
    ours = ranks.run(train_without, 2, embedding, "drifting", "lazy-adam", True)
    for one, other in zip(ours, plain(train_without, 2, "drifting", "lazy-adam", True), strict=True):
        assert_same_bits(one, other)


def test_a_batch_without_ids_of_a_table_needs_no_row_of_it(ranks, plain):
    absent, empty = (plain(train_without, 2, "drifting", "lazy-adam", how) for how in (False, True))
    for one, other in zip(absent, empty, strict=True):
        assert_same_bits(one, other)


def train_without(rank, ranks, embedding, script, optimizer, empty):
    from fsbench.train.driver import Driver
    from tests.scripted import Absent, left_behind

    workload = Absent(script, optimizer, ranks, empty=empty)
    with support.opened_cell(rank, ranks, workload, embedding=embedding) as trainer:
        driver = Driver(trainer, 0, 23)
        driver.run()
        return left_behind(trainer, driver)


def used_rows(rank, ranks, embedding, script, optimizer, steps, pause_at=None):
    """By step, the rows that the model was given, [m, dim], and their IDs; and the table in the end.

    The loss is the sum of the rows: gradients do not depend on them, so that a row tells how many updates it has had.
    """
    from fsbench.train.driver import Driver
    from tests.scripted import Linear

    with support.opened_cell(rank, ranks, Linear(script, 1, optimizer), embedding=embedding) as trainer:
        initial = trainer.strategies.embedding.state_dict()["t0"]["weight"].numpy().copy()
        driver = Driver(trainer, 0, steps)

        def pause(step):
            if step == pause_at:
                trainer.strategies.embedding.flush()

        driver.run(pause)
        final = {name: value.numpy().copy() for name, value in trainer.strategies.embedding.state_dict()["t0"].items()}
    return trainer.model.seen, initial, final


def ages(embedding, ranks, script="same", steps=20, pause_at=None):
    """By step, the steps whose updates the rows in use lack, as the rows themselves tell: the least and the most."""
    found = []
    for seen, initial, final in ranks.run(used_rows, 2, embedding, script, "sgd", steps, pause_at):
        each = (final["weight"] - initial) / steps  # every step moves every row of the script alike
        for step, (ids, rows) in enumerate(seen):
            updates = ((rows - initial[ids]) / each[ids]).mean(1)
            assert np.abs(updates - updates.round()).max() < 1e-6
            found.append((step, step - updates.round()))
    return [
        (int(min(age.min() for at, age in found if at == step)), int(max(age.max() for at, age in found if at == step)))
        for step in range(steps)
    ]


@pytest.mark.parametrize("embedding", ["plain", *EXACT])
def test_no_row_of_an_exact_strategy_lacks_an_update(ranks, embedding):
    assert ages(embedding, ranks) == [(0, 0)] * 20


def test_rows_fetched_ahead_lack_the_update_of_the_step_before(ranks):
    assert ages("prefetch-stale", ranks) == [(0, 0)] + [(1, 1)] * 19


def test_copies_lack_at_most_what_is_allowed_and_as_much_sometimes(ranks):
    """Chosen anew, and read, before steps 1, 3, 7 and 15; sent after every fourth, in use a step later."""
    oldest = [most for _, most in ages("hot-first:staleness=4,coverage=1", ranks)]
    assert oldest == [0, 0, 1, 0, 1, 2, 3, 0, 1, 2, 3, 4, 1, 2, 3, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("embedding", [name for name in STALE if name.startswith("hot")])
@pytest.mark.parametrize("script", ["same", "all_equal"])
def test_no_copy_is_ever_older_than_the_bound(ranks, embedding, script):
    assert max(most for _, most in ages(embedding, ranks, script)) == STALE[embedding]


def test_a_flush_makes_copies_new(ranks):
    at = {step: most for step, (_, most) in enumerate(ages("hot-first:staleness=4,coverage=1", ranks, pause_at=11))}
    assert at[11] == 0


@pytest.mark.parametrize("embedding", STALE)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_no_gradient_is_lost_or_counted_twice(ranks, plain, embedding, optimizer):
    """Of equal gradients, merged or late, every optimizer makes what it makes of them one by one."""
    ours = ranks.run(used_rows, 2, embedding, "same", optimizer, 23)[0][2]
    for name, values in plain(used_rows, 2, "same", optimizer, 23)[0][2].items():
        np.testing.assert_allclose(ours[name], values, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("staleness", [0, 2])
def test_hot_rows_follow_a_drift(ranks, staleness):
    """At step 16 the popular rows become others: after the counts have faded, those are hot."""
    embedding = f"hot-first:staleness={staleness},renew=4,coverage=0.6"
    counts = ranks.run(train_and_count, 2, embedding, "drifting", 48)[0]

    def share(first, last):
        hot, cold = (counts[last][of] - counts[first][of] for of in ("hot", "cold"))
        return hot / (hot + cold)

    assert share(8, 16) > 0.4
    assert share(17, 19) < 0.2
    assert share(39, 47) > 0.4


def train_and_count(rank, ranks, embedding, script, steps):
    """What `rows_by_class` says before each step."""
    from fsbench.train.driver import Driver
    from fsbench.train.trainer import close_trainer
    from tests.scripted import Scripted

    trainer = support.open_workload(rank, ranks, Scripted(script, 1, "sgd"), embedding=embedding)
    counts = []
    Driver(trainer, 0, steps).run(lambda step: counts.append(dict(trainer.strategies.embedding.rows_by_class())))
    close_trainer(trainer)
    return counts


ALL = ["plain", "plain:prefetch=1", "prioritized", "prefetch-stale", "hot-first", "hot-first:staleness=3"]


@pytest.mark.parametrize(("source", "target"), [*((one, "plain") for one in ALL), *(("plain", one) for one in ALL[1:])])
def test_what_any_strategy_saved_any_other_loads(ranks, plain, tmp_path, source, target):
    """By way of `plain`: all save the same tables."""
    handed_over = ranks.run(train_scripted, 2, source, "returning", 2, "lazy-adam", 12, 5, tmp_path, target)
    unbroken = plain(train_scripted, 2, "returning", 2, "lazy-adam", 12)
    for ours, reference in zip(handed_over, unbroken, strict=True):
        assert all(np.isfinite(values).all() for values in ours["tables"].values())
        if not any("stale" in name for name in (source, target)):
            assert_same_bits(ours, reference)


def report_of(rank, ranks, folder, workload, steps, axes):
    """The outcome of a whole run, and whether the strategy said to be exact."""
    from fsbench.launch.heartbeat import Heartbeat
    from fsbench.train.report import build_report
    from fsbench.train.session import TrainingRun
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks, workload, **axes)
    report = build_report(trainer, TrainingRun(trainer, steps, Heartbeat(folder, rank)).execute())
    exact = trainer.strategies.embedding.exact
    close_trainer(trainer)
    return report, exact


FP32 = support.with_options(support.TINY_LONG, dtype="float32", items=300, max_len=60, eval_users=40)


def report(ranks, folder, embedding, workload=FP32, steps=20):
    outcome, exact = ranks.run(report_of, 2, folder, workload, steps, {"embedding": embedding}, limit_s=60)[0]
    return outcome["metrics"], outcome["missing"], exact


def moved(metrics, what=("rows", "gradients")):
    return sum(size for kind, size in metrics["bytes_by_class"].items() if kind.partition(".")[0] in what)


@pytest.mark.parametrize(("embedding", "staleness", "classes"), [
    ("plain", 0, {"rows", "gradients"}),
    ("plain:prefetch=1", 0, {"rows", "gradients"}),
    ("prefetch-stale", 1, {"rows", "gradients"}),
    ("prioritized", 0, {f"{what}.{of}" for what in ("rows", "gradients") for of in ("collision", "exclusive")}),
    *((f"hot-first:staleness={k}", k, {
        f"{what}.{of}" for what in ("rows", "gradients") for of in ("hot", "cold.collision", "cold.exclusive")
    }) for k in (0, 4)),
])  # fmt: skip
def test_every_result_says_what_was_moved_and_how_stale_rows_were(ranks, tmp_path, embedding, staleness, classes):
    metrics, missing, exact = report(ranks, tmp_path, embedding)
    assert exact == (staleness == 0)
    assert metrics["staleness_steps"] == staleness
    assert {kind for kind in metrics["bytes_by_class"] if kind.partition(".")[0] in ("rows", "gradients")} == classes
    assert metrics["embedding_bytes_per_step"] == pytest.approx(moved(metrics, ("ids", "rows", "gradients")))
    assert 0 < metrics["collision_rate"] <= metrics["collision_rate_p99"] <= 1
    assert metrics["owner_imbalance"] >= 1
    if embedding.startswith("hot"):
        assert 0 < metrics["hot_coverage"] < 1
    else:
        assert metrics["hot_coverage"] is None
        assert missing["hot_coverage"] == "the embedding strategy has no hot rows"


def test_exact_hot_rows_move_no_more_than_plain(ranks, tmp_path):
    plain, ours = (report(ranks, tmp_path, name)[0] for name in ("plain", "hot-first"))
    assert moved(ours) <= moved(plain)


@pytest.mark.slow
def test_copies_of_four_steps_halve_what_is_moved_of_popular_rows(ranks, tmp_path):
    """Zipf items, 60 steps, the first choices of hot rows included."""
    workload = support.with_options(FP32, batch=8, items=1000, categories=100, max_len=1000, negatives=64, eval_users=1)
    plain, ours = (report(ranks, tmp_path, name, workload, 60)[0] for name in ("plain", "hot-first:staleness=4"))
    assert moved(ours) < 0.55 * moved(plain)


def operations(rank, ranks, embedding):
    """How many there were in six steps, by lane and kind: of IDs, rows and gradients."""
    from fsbench.train.driver import Driver
    from fsbench.train.trainer import close_trainer
    from tests.scripted import Scripted

    trainer = support.open_workload(rank, ranks, Scripted("same", 1, "sgd"), embedding=embedding)
    Driver(trainer, 0, 6).run()
    counts = {}
    for name, lane in trainer.context.lanes.items():
        kinds = sorted(lane.log.kinds())
        found = lane.log.arrays(kinds).kinds.tolist()
        counts |= {(name, kind): found.count(place) for place, kind in enumerate(kinds)}
    close_trainer(trainer)
    return {of: count for of, count in counts.items() if of[1] in ("ids", "rows", "gradients")}


def test_with_prefetch_ids_leave_the_lane_that_steps_wait_for(ranks):
    within, ahead = (ranks.run(operations, 2, name)[0] for name in ("plain", "plain:prefetch=1"))
    rest = {("exchange", "rows"): 6, ("exchange", "gradients"): 6}
    assert within == {("exchange", "ids"): 12, **rest}
    assert ahead == {("ids", "ids"): 12, **rest}


@pytest.mark.parametrize(("text", "why"), [("2", "prefetch is 2, expected 0 or 1"), ("all", "option prefetch=all: ")])
def test_a_prefetch_of_more_than_one_batch_is_refused_in_one_line(text, why):
    with pytest.raises(UserError, match=why) as refused:
        create("embedding", Spec.parse(f"plain:prefetch={text}"))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("embedding", ["plain", "plain:prefetch=1", "prioritized", "hot-first"])
def test_a_narrow_wire_halves_the_bytes_and_says_that_it_is_not_exact(ranks, tmp_path, embedding):
    whole, _, exact = report(ranks, tmp_path, embedding)
    halved, _, still_exact = report(ranks, tmp_path, support.with_options(embedding, wire="bf16"))
    same, _, as_exact = report(ranks, tmp_path, support.with_options(embedding, wire="fp32"))
    assert (exact, still_exact, as_exact) == (True, False, True)
    assert moved(halved) == moved(whole) / 2
    assert halved["loss"] == pytest.approx(whole["loss"], rel=1e-3)
    assert halved["loss"] != whole["loss"]
    assert (moved(same), same["loss"]) == (moved(whole), whole["loss"])


def test_a_wire_narrower_than_the_model_is_not_exact(ranks, tmp_path):
    assert not report(ranks, tmp_path, "plain:wire=fp32", support.with_options(FP32, dtype="float64"))[2]

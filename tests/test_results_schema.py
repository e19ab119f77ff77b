"""Records: complete, explained and finite, or refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fsbench.results.decoding import decode
from fsbench.results.record_shape import record_fault
from fsbench.results.schema import METRICS, NO_COLLECTOR, NOT_COLLECTED, make_record
from tests.fakes import FIGURES, record, run_spec

DESIGNED = [
    "step_ms_p50", "step_ms_p95", "samples_per_s", "tokens_per_s", "tflops", "bubble", "bubble_straggler",
    "bubble_embedding", "bubble_dense", "bubble_shuffle", "bubble_strategy", "bubble_input",
    "bubble_preempted", "bubble_other", "lost_us_per_sample", "straggler_floor", "compute_inflation",
    "imbalance_predicted", "imbalance_measured", "padding", "embedding_bytes_per_step",
    "dense_bytes_per_step", "shuffle_bytes_per_step", "bytes_by_class", "exposed_ms_by_class",
    "exposed_embedding_ms", "collision_rate", "owner_imbalance", "sync_gap_p50", "syncs_per_min",
    "blocked_share", "replica_spread", "ndcg_at_10", "ndcg_at_10_se", "hr_at_10", "ne", "loss",
    "seconds_to_target", "peak_rss_mib", "peak_gpu_mib", "power_w_mean", "sm_util_mean",
]  # fmt: skip


def nested(levels: int) -> dict:
    return {"a": nested(levels - 1)} if levels else {}


def make(**changes):
    arguments = {
        "kind": "cpu",
        "status": "ok",
        "started": "2026-01-02T03:04:05+00:00",
        "wall_s": 1.0,
        "metrics": {"loss": 2.5},
        "missing": dict.fromkeys(METRICS, "not looked at"),
    }
    return make_record(run_spec(), **{**arguments, **changes})


def test_metrics_may_be_added_and_none_of_version_1_renamed():
    assert set(DESIGNED) <= set(METRICS)


def test_a_record_has_every_metric_as_a_value_or_as_null_with_a_reason():
    made = make()
    assert set(made["metrics"]) == set(METRICS)
    assert made["metrics"]["loss"] == 2.5
    assert set(made["missing"]) == {name for name, value in made["metrics"].items() if value is None}


def test_a_record_survives_json():
    made = make(metrics={"loss": 2.5, "bytes_by_class": {"ids": 12}}, per_rank=({"rank": 0},))
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert record_fault(made) is None


def test_numpy_scalars_become_plain_numbers():
    made = make(metrics={"loss": np.float32(0.5), "steps_measured": np.int64(3)})
    assert json.dumps([made["metrics"]["loss"], made["metrics"]["steps_measured"]]) == "[0.5, 3]"


def test_a_metric_without_value_and_reason_is_refused_by_name():
    with pytest.raises(ValueError, match="no value and no reason for step_ms_p95"):
        make(metrics={}, missing={name: "why" for name in METRICS if name != "step_ms_p95"})


def test_what_nothing_measures_yet_needs_no_reason_from_the_caller():
    needed = {name: "why" for name in METRICS if name not in NOT_COLLECTED}
    assert make(metrics={}, missing=needed)["missing"]["seconds_to_target"] == NO_COLLECTOR


def test_a_reason_for_a_metric_that_has_a_value_is_dropped():
    assert "loss" not in make()["missing"]


def test_a_run_that_did_not_end_explains_all_its_metrics_at_once():
    made = make(status="timeout", reason="600 s were over", metrics={}, missing={})
    assert set(made["missing"].values()) == {"timeout: 600 s were over"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": "fine"}, "unknown status 'fine'"),
        ({"kind": "tpu"}, "unknown kind 'tpu'"),
        ({"metrics": {"ndcg_at_1O": 0.1}}, "unknown metric 'ndcg_at_1O'; did you mean ndcg_at_10"),
        ({"missing": {"ndgc": "why"}}, "unknown metric 'ndgc'"),
        ({"status": "failed"}, "status failed with reason None"),
        ({"reason": "just so"}, "status ok with reason 'just so'"),
        ({"metrics": {"loss": float("nan")}}, r"record\.metrics\.loss is nan"),
        ({"metrics": {"loss": np.float32("inf")}}, r"record\.metrics\.loss is inf"),
        ({"metrics": {"bytes_by_class": {"ids": float("inf")}}}, r"record\.metrics\.bytes_by_class\.ids is inf"),
        ({"per_rank": [{"compute_s": float("nan")}]}, r"record\.per_rank\[0\]\.compute_s is nan"),
        ({"observed": {"sync": {"parameters": {1, 2}}}}, "parameters is a set, which a record cannot hold"),
        (
            {"observed": {"sync": {"rows": 2**64}}},
            r"record\.observed\.sync\.rows is a whole number of more",
        ),
        ({"observed": nested(100)}, "nested too deeply: more than 64 levels"),
    ],
)
def test_what_a_reader_could_misread_is_refused(changes: dict, message: str):
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_what_is_made_is_read_again_at_every_bound_that_reading_has():
    made = make(observed={"sync": {"rows": 2**64 - 1, "deep": nested(50)}})
    assert decode(json.dumps(made).encode()) == made
    assert record_fault(made) is None


def test_a_reason_of_any_length_leaves_a_record_short():
    made = make(status="failed", reason="x" * 10**6, metrics={}, missing={})
    assert made["reason"] == "x" * 2000 + "... (1000000 characters)"
    assert len(json.dumps(made)) < 2**18


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"schema": 2}, "schema 2; this version of fsbench reads 1"),
        ({"run_id": 7}, "'run_id' is missing or of the wrong type"),
        ({"status": "fine"}, "unknown status 'fine'"),
        ({"kind": "CPU"}, "unknown kind 'CPU'"),
        ({"cell": {"workload": "w"}}, "'cell' needs workload, cluster"),
        ({"metrics": {"loss": "2.5"}}, "metric 'loss' is '2.5'"),
    ],
)
def test_a_foreign_record_is_recognised_by_what_is_wrong_with_it(changes: dict, fault: str):
    assert str(record_fault({**record(), **changes})).startswith(fault)


def test_the_figures_of_the_fake_run_sum_to_its_bubble():
    assert sum(value for name, value in FIGURES.items() if name.startswith("bubble_")) == FIGURES["bubble"]

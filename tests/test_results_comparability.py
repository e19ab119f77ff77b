"""What may be compared with what, part by part of the key."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from fsbench.results.comparability import Level, changes, differences, key_of, level

WORKLOAD, CLUSTER = "long-cpu:batch=4", "local:ranks=2"
MANIFEST: dict[str, Any] = {
    "versions": {"fsbench": "0.1.0", "python": "3.11.9", "torch": "2.13.0", "torchrec": None},
    "plugins": [{"kind": "sharding", "name": "naive", "distribution": "fsbench", "version": "0.1.0"}],
    "git": {"commit": "c0ffee", "dirty": False},
    "cpu": {"model": "Abacus 9", "cores": 2, "memory_mib": 8000},
    "gpus": [{"name": "H200", "memory_mib": 143771, "driver": "580.1"}],
    "nccl": None,
    "topology": None,
    "settings": {"repeats": 6, "steps": None, "seed": 1, "time_limit_s": 600},
    "seeds": [1],
    "environment": {"OMP_NUM_THREADS": "1"},
    "data": {WORKLOAD: {"data_sha256": "ab" * 32, "split_sha256": "cd" * 32, "sizing": {"rows": 7}}},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The manifest with the entry at a dotted path replaced."""
    manifest = copy.deepcopy(MANIFEST)
    *parents, last = path.split("/")
    entry = manifest
    for parent in parents:
        entry = entry[int(parent)] if isinstance(entry, list) else entry[parent]
    entry[last] = value
    return manifest


def key(manifest: dict[str, Any] = MANIFEST, workload: str = WORKLOAD, cluster: str = CLUSTER, kind: str = "cpu"):
    return key_of(manifest, workload, cluster, kind)


def found(other, mine=None) -> list[tuple[str, str, str, str]]:
    return [(d.part, d.first, d.second, d.level.name) for d in differences(mine or key(), other)]


def test_a_set_compares_directly_with_one_of_the_same_key():
    assert found(key(copy.deepcopy(MANIFEST))) == []
    assert level([]) == Level.DIRECTLY


@pytest.mark.parametrize(
    ("path", "value", "difference"),
    [
        ("versions/fsbench", "0.2.0", ("version fsbench", "0.1.0", "0.2.0")),
        ("versions/python", "3.12.1", ("version python", "3.11.9", "3.12.1")),
        ("versions/torch", "2.14.0", ("version torch", "2.13.0", "2.14.0")),
        ("versions/torchrec", "1.8.0", ("version torchrec", "none", "1.8.0")),
        ("plugins/0/version", "0.2.0", ("plugin sharding naive", "fsbench 0.1.0", "fsbench 0.2.0")),
        ("cpu/model", "Abacus 10", ("cpu model", "Abacus 9", "Abacus 10")),
        ("cpu/cores", 4, ("cpu cores", "2", "4")),
        ("cpu/memory_mib", 16000, ("memory", "8 GiB", "16 GiB")),
        ("settings/steps", 50, ("steps", "the workload's default", "50")),
        ("settings/workers", 2, ("workers", "1", "2")),
        ("seeds", [2], ("seeds", "[1]", "[2]")),
        ("environment", {}, ("environment OMP_NUM_THREADS", "1", "unset")),
        ("topology", "pairs", ("topology", "not recorded", "pairs")),
    ],
)
def test_elsewhere_only_ratios_within_each_set_compare(path: str, value: Any, difference: tuple[str, str, str]):
    assert found(key(changed(path, value))) == [(*difference, "AS_RATIOS")]


def test_another_cluster_or_kind_is_elsewhere():
    assert found(key(cluster="local:ranks=4")) == [("cluster", "local:ranks=2", "local:ranks=4", "AS_RATIOS")]
    assert found(key(kind="gpu")) == [("kind", "cpu", "gpu", "AS_RATIOS")]


@pytest.mark.parametrize(
    ("path", "value", "difference"),
    [
        (f"data/{WORKLOAD}/data_sha256", "ef" * 32, ("data data_sha256", "ab" * 32, "ef" * 32)),
        (f"data/{WORKLOAD}/split_sha256", "ef" * 32, ("data split_sha256", "cd" * 32, "ef" * 32)),
        (f"data/{WORKLOAD}/sizing", {"rows": 8}, ("data sizing.rows", "7", "8")),
    ],
)
def test_other_data_does_not_compare_at_all(path: str, value: Any, difference: tuple[str, str, str]):
    assert found(key(changed(path, value))) == [(*difference, "NOT_AT_ALL")]


@pytest.mark.parametrize(
    ("workload", "difference"),
    [
        ("sparse:batch=4", ("workload", "long-cpu", "sparse")),
        ("long-cpu:batch=8", ("batch", "4", "8")),
        ("long-cpu", ("batch", "4", "the default")),
        ("long-cpu:batch=4,dtype=bfloat16", ("precision", "the default", "bfloat16")),
        ("long-cpu:batch=4,dim=32", ("option dim", "the default", "32")),
    ],
)
def test_another_workload_batch_precision_or_model_does_not_compare_at_all(workload: str, difference):
    manifest = changed("data", {workload: MANIFEST["data"][WORKLOAD]})
    assert found(key(manifest, workload)) == [(*difference, "NOT_AT_ALL")]


def test_an_option_given_at_its_default_is_the_same_as_one_not_given():
    def resolved(spec: str, **options: Any) -> dict[str, Any]:
        data = MANIFEST["data"][WORKLOAD]
        return {**MANIFEST, "data": {spec: data}, "options": {"workloads": {spec: {"dim": 64, **options}}}}

    given, left_out = resolved("long-cpu:batch=8", batch=8), resolved("long-cpu", batch=8)
    assert found(key(left_out, "long-cpu"), key(given, "long-cpu:batch=8")) == []
    other = found(key(resolved("long-cpu", batch=16), "long-cpu"), key(given, "long-cpu:batch=8"))
    assert other == [("batch", "8", "16", "NOT_AT_ALL")]


@pytest.mark.parametrize(
    ("path", "kind"),
    [("git", "cpu"), ("plugins", "cpu"), ("gpus", "cpu"), ("cpu", "sim"), ("environment", "sim"), ("gpus", "sim")],
)
def test_what_does_not_bear_on_the_figures_is_no_part_of_the_key(path: str, kind: str):
    empty = [] if path == "plugins" else {}
    assert found(key(changed(path, empty), kind=kind), key(kind=kind)) == []


def test_memory_that_differs_from_boot_to_boot_is_the_same():
    assert found(key(changed("cpu/memory_mib", 8013))) == []


def test_a_gpu_is_told_by_name_memory_and_driver():
    (difference,) = found(key(changed("gpus/0/driver", "590.2"), kind="gpu"), key(kind="gpu"))
    assert difference == (
        "gpus",
        "1 x H200 143771 MiB, driver 580.1",
        "1 x H200 143771 MiB, driver 590.2",
        "AS_RATIOS",
    )


def test_what_is_not_recorded_equals_nothing_not_even_what_is_not_recorded_either():
    unknown = key(changed("cpu/model", None))
    assert found(unknown, unknown) == [("cpu model", "not recorded", "not recorded", "AS_RATIOS")]
    nowhere = key(changed("data", {}))
    assert found(nowhere, nowhere) == [("data", "not recorded", "not recorded", "NOT_AT_ALL")]


def test_without_a_manifest_nothing_can_be_told_and_nothing_compares():
    parts = {part: level for part, _, _, level in found(key({}), key({}))}
    assert parts["data"] == "NOT_AT_ALL"
    assert {"version torch", "steps", "seeds", "cpu model"} <= set(parts)


def test_a_set_resumed_on_another_machine_has_no_machine_to_compare():
    resumed = {**MANIFEST, "resumed": [MANIFEST, changed("cpu/model", "Abacus 10")]}
    assert found(key(resumed)) == [("cpu model", "Abacus 9", "Abacus 9 then Abacus 10", "AS_RATIOS")]
    assert changes(key(resumed)) == ["cpu model: Abacus 9 then Abacus 10"]
    assert found(key(resumed), key(resumed)) != []


def test_a_set_resumed_as_it_was_is_one_set():
    resumed = {**MANIFEST, "resumed": [changed("settings/repeats", 12)]}
    assert found(key(resumed)) == []
    assert changes(key(resumed)) == []


def test_a_difference_names_the_part_and_both_values_with_hashes_cut_short():
    (difference,) = differences(key(), key(changed(f"data/{WORKLOAD}/data_sha256", "ef" * 32)))
    assert difference.told("A", "B") == "data data_sha256: abababababab in A, efefefefefef in B"

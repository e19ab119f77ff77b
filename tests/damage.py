"""Damaged and hostile result sets, and the values that make them: for tests of what reads such."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from fsbench.results.store import ResultSet
from tests.fakes import cell, record, run_spec

RECORDS = [record(run_spec(repeat, sharding=sharding)) for repeat in (1, 2) for sharding in ("naive", "cost-aware")]
RECORDS[3] = record(run_spec(2, sharding="cost-aware"), status="failed", reason="rank 1, backward: out of luck")
LATER = record(run_spec(1, sharding="later"))
MANIFEST: dict[str, Any] = {
    "schema": 1,
    "started": "2026-01-02T03:04:05+00:00",
    "versions": {"fsbench": "0.1.0", "python": "3.11.9", "torch": "2.13.0", "torchrec": None},
    "plugins": [{"kind": "sharding", "name": "naive", "distribution": "fsbench", "version": "0.1.0"}],
    "git": {"commit": "ab" * 20, "dirty": True},
    "cpu": {"model": "Abacus 9", "cores": 2, "memory_mib": 8000},
    "gpus": None,
    "settings": {"repeats": 2, "steps": None, "seed": 1, "time_limit_s": 600},
    "seeds": [1],
    "cells": [one["cell"] for one in RECORDS[:2]],
    "runs": [one["run_id"] for one in RECORDS],
    "environment": {"OMP_NUM_THREADS": "1"},
    "data": {"ml-100k": {"data_sha256": "c0ffee" * 8, "split": {"ties": 0.5}}},
    "options": {"workloads": {"ml-100k": {"dim": 32}}},
}
MANIFEST["resumed"] = [{**MANIFEST, "started": "2026-02-02T03:04:05+00:00"}]
LINES = [json.dumps(one, ensure_ascii=False).encode() for one in RECORDS]

_NASTY = ["../../etc", "/etc/passwd", "a\x00b", "\x1b[2J", "\u202e", "=1+1", "|", "-"]
texts = st.text(max_size=8) | st.sampled_from(_NASTY)
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | texts
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)
"""What a JSON parser may return, and a little that it may not."""


def write_set(folder, runs: bytes, manifest: bytes | None = None) -> ResultSet:
    """A result set of these bytes."""
    folder.mkdir()
    (folder / "runs.jsonl").write_bytes(runs)
    (folder / "manifest.json").write_bytes(json.dumps(MANIFEST).encode() if manifest is None else manifest)
    return ResultSet.open(folder)


@st.composite
def with_a_part_replaced(draw: st.DrawFn, whole: Any, others: st.SearchStrategy = json_values) -> Any:
    """The value with something in it, or all of it, replaced by anything."""
    if isinstance(whole, dict) and whole and draw(st.integers(0, 9)):
        key = draw(st.sampled_from(sorted(whole)))
        return {**whole, key: draw(with_a_part_replaced(whole[key], others))}
    if isinstance(whole, list) and whole and draw(st.integers(0, 9)):
        place = draw(st.integers(0, len(whole) - 1))
        return [*whole[:place], draw(with_a_part_replaced(whole[place], others)), *whole[place + 1 :]]
    return draw(others)


def hostile(text: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Records and a manifest that have `text` wherever a text of anyone's choice can stand."""
    where = cell(sharding=f"naive:note={text}" if text.isprintable() and "," not in text else "naive")
    protocol = {"evaluation": {"protocol": text}, text: {text: text}}
    records = [
        record(run_spec(repeat), observed=protocol, missing={"loss": text or "why"}, loss=None) for repeat in (1, 2)
    ]
    records.append(record(run_spec(3), status="failed", reason=text))
    records += [{**record(run_spec(1, sharding="other")), "cell": {**records[0]["cell"], "sharding": where.sharding}}]
    records[-1]["metrics"]["bytes_by_class"] = {text: 1}
    manifest = {
        **{key: value for key, value in MANIFEST.items() if key != "resumed"},
        "started": text,
        "versions": {"fsbench": text, text: text},
        "environment": {text: text},
        "cpu": {"model": text},
        "data": {"ml-100k": {text: text}},
        "options": {"workloads": {"ml-100k": {text: text}}},
        "matrix": {"name": text},
    }
    return records, {**manifest, "resumed": [{**manifest, "cpu": {"model": "another"}}]}

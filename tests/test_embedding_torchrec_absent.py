"""Without torchrec its strategies say so, and everything else runs."""

from __future__ import annotations

import importlib.util

import pytest

from fsbench.options import Spec
from fsbench.plugins import create

STRATEGIES = ("torchrec", "torchrec-pipelined")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("absent", "reason"),
    [
        ("torchrec", "needs torchrec, not installed"),
        ("fbgemm_gpu", "needs fbgemm-gpu or, on a CPU, fbgemm-gpu-cpu, not installed"),
    ],
)
def test_the_reason_names_what_is_missing_and_how_to_get_it(monkeypatch, strategy, absent, reason):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else object())
    found = create("embedding", Spec.parse(strategy)).requirements()
    assert found.startswith(reason)
    assert "pip install" in found


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_where_both_are_there_nothing_is_missing(monkeypatch, strategy):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert create("embedding", Spec.parse(strategy)).requirements() is None

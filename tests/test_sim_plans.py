"""Plans of the built-in strategies say what the recorder sees on real ranks: lane, order, name, kind and bytes."""

from __future__ import annotations

import pytest

from tests import plans

WORKLOAD = "long-cpu:batch=4,items=50,categories=5,max_len=60,dim=8,heads=2,layers=1,negatives=4,dtype=float64"
STEPS = 4
CELLS = {
    "the defaults": {},
    "asked ahead": {"embedding": "plain:prefetch=1", "sync": "fr-ma:every=2"},
    "in small buckets and pieces": {"collectives": "backend:piece=100", "sync": "allreduce:bucket=1KiB"},
    "samples and rows by class": {"sharding": "cost-aware", "embedding": "prioritized", "sync": "none"},
    "everything through small buffers": {
        "sharding": "cost-aware",
        "embedding": "prioritized:wire=bf16",
        "collectives": "host-staged:chunk=100",
        "sync": "shadow-ma:duty=1",
    },
}


@pytest.mark.distributed
@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("cell", CELLS)
def test_the_operations_of_a_plan_are_those_that_real_ranks_record(ranks, cell, number):
    once, rounds = plans.written(number, WORKLOAD, STEPS, CELLS[cell])
    for rank, lanes in enumerate(ranks.run(plans.recorded, number, WORKLOAD, STEPS, CELLS[cell])):
        assert lanes.keys() == once.keys()
        for lane, seen in lanes.items():
            assert any(seen) or not (once[lane] or rounds.get(lane)), f"nothing was recorded on {lane}"
            said = [(each.name, each.kind, int(each.traffic.sent[rank])) for each in rounds.get(lane, once[lane])]
            times = len(seen) // max(1, len(said)) if lane in rounds else 1
            assert seen == said * times, f"lane {lane} of rank {rank}"

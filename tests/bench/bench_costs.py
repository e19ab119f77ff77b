"""How near a measured cost model and measured speeds come to the ideal split: see `tests.bench.balancing`.

`pytest tests/bench/bench_costs.py --benchmark-only`: prints a table.
"""

import pytest

from tests.bench import balancing


@pytest.mark.timeout(600)
def test_balancing_by_what_is_measured(benchmark, capsys):
    profile = balancing.calibrated()
    found = benchmark.pedantic(balancing.measure, rounds=1)
    benchmark.extra_info.update({"error": profile["error"]})
    with capsys.disabled():
        print(f"\n{balancing.report(profile, found)}")

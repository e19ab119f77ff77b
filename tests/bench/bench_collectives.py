"""How near the line a strategy's exchange is, and how much of it hides behind compute: see `tests.bench.collectives`.

`pytest tests/bench/bench_collectives.py --benchmark-only`: prints a line a strategy.
"""

import dataclasses

import pytest

from fsbench.options import Spec
from fsbench.plugins import create
from tests.bench import collectives

refused = create("clusters", Spec.parse(collectives.CLUSTER)).requirements()


@pytest.mark.skipif(refused is not None, reason=str(refused))
@pytest.mark.timeout(300)
def test_exchange_on_a_link_alone_and_beside_compute(benchmark, capsys):
    times = benchmark.pedantic(collectives.measure, (collectives.STRATEGIES,), rounds=1)
    benchmark.extra_info.update({name: dataclasses.asdict(t) | {"overlap": t.overlap} for name, t in times.items()})
    with capsys.disabled():
        print(f"\n{collectives.report(times)}")

"""Balancing time, balance and bytes moved, beside public algorithms and the bars: `tests.bench.sharding`."""

import dataclasses

import pytest

from tests.bench import sharding


def run(benchmark, capsys, measure, report):
    """Measures once, inside the benchmark, and prints."""
    found = benchmark.pedantic(measure, rounds=1)
    with capsys.disabled():
        print(f"\n{report(found)}")
    return found


@pytest.mark.timeout(300)
def test_8_ranks_beside_public_algorithms(benchmark, capsys):
    methods = {**sharding.OURS, **sharding.PUBLIC, **sharding.SLOW}
    run(benchmark, capsys, lambda: sharding.compare(8, 3, methods), sharding.report)


@pytest.mark.timeout(300)
def test_256_ranks_beside_public_algorithms_and_what_must_be_reached(benchmark, capsys):
    found = run(
        benchmark, capsys, lambda: sharding.compare(256, 7, {**sharding.OURS, **sharding.PUBLIC}), sharding.report
    )
    bars = sharding.bars_at_256(found)
    benchmark.extra_info.update({bar.what: dataclasses.asdict(bar) for bar in bars})
    with capsys.disabled():
        print(f"\n{sharding.report_bars(bars)}")


@pytest.mark.timeout(300)
def test_a_million_samples_and_ranks_of_other_speeds(benchmark, capsys):
    run(benchmark, capsys, lambda: [*sharding.bars_at_8192(), *sharding.bars_of_speeds()], sharding.report_bars)

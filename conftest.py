"""Fixtures for all tests: the pool of ranks, and hypothesis without a stop-watch (the machines are noisy)."""

from __future__ import annotations

import importlib.util
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("fsbench", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fsbench")

# Beside three ranks on two cores, a second thread only gets in the way.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts what it runs in the background with Ctrl-C ignored, and processes inherit that: the tests of Ctrl-C
# are about a run that a user started, so they put back what a terminal gives.
for _signal, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Says why GPU tests are skipped where there is no GPU."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, found none"))


@pytest.fixture(scope="session")
def ranks():
    """`ranks.run(function, n, *args)`: the function on n real ranks; results by rank."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch: pip install 'fsbench[cpu]'")
    from fsbench.testing.pool import shared_pool

    pool = shared_pool()
    yield pool
    pool.close()

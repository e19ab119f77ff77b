"""The examples run as they stand, and many ranks learn what one learns."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
# Open MPI asks for these where the tests run as root, or on fewer cores than ranks.
AS_ROOT = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
OVERSUBSCRIBED = {"OMPI_MCA_rmaps_base_oversubscribe": "1"}


# `pip install mpich` puts mpiexec beside python.
MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


def printed_by(*command):
    environment = {**os.environ, **AS_ROOT, **OVERSUBSCRIBED, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def needs(module):
    absent = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(absent, reason=f"needs {module}, not installed")


@pytest.fixture
def mpiexec():
    """The command; without an MPI that mpi4py loads, the reason why the test is skipped."""
    loaded = subprocess.run(
        [sys.executable, "-c", "from mpi4py import MPI"], capture_output=True, text=True, timeout=30
    )
    if loaded.returncode:
        pytest.skip(f"needs mpi4py: {loaded.stderr.strip().splitlines()[-1]}")
    if MPIEXEC is None:
        pytest.skip("needs mpiexec, not found")
    return MPIEXEC


@pytest.mark.slow
@pytest.mark.distributed
@needs("torch")
def test_two_ranks_under_ddp_learn_what_one_process_learns_and_wait_less_than_unbalanced_ones():
    printed = printed_by(sys.executable, EXAMPLES / "balanced_dataloader.py")
    assert float(re.search(r"two ranks learn differs by (\S+) of", printed)[1]) < 1e-12
    naive, balanced = (
        float(re.search(rf"{name}: ranks would wait (\S+) %", printed)[1]) for name in ("naive", "cost-aware")
    )
    assert balanced < naive / 5


@pytest.mark.distributed
def test_two_ranks_of_mpi_end_where_one_ends_with_nearly_equal_work(mpiexec):
    printed = printed_by(mpiexec, "-n", "2", sys.executable, EXAMPLES / "balanced_mpi.py")
    away, first, second = re.fullmatch(r"2 ranks end (\S+) of .*: \[(\d+), (\d+)\]\n", printed).groups()
    assert float(away) < 1e-12
    assert int(first) == pytest.approx(int(second), rel=0.05)


@needs("tensorflow")
def test_tf_data_yields_every_history_once_over_the_ranks(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from balanced_tf_data import dataset

    histories = [[i] * (1 + i % 7) for i in range(21)]
    batches = [list(dataset(histories, rank=rank, ranks=2, samples_per_rank=4)) for rank in range(2)]
    assert len(batches[0]) == len(batches[1]) == 3
    assert sorted(row for rank in batches for batch in rank for row in batch.to_list()) == sorted(histories)

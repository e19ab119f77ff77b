"""What changes on a GPU: the same training as on the CPU, through NCCL. Needs one CUDA device; `make gpu-check`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests import support

pytestmark = [pytest.mark.gpu, pytest.mark.distributed, pytest.mark.timeout(180)]


def train(rank, ranks, device, embedding="plain"):
    """Loss curve, and ranking counts of the trained model."""
    from fsbench.train.driver import Driver
    from fsbench.train.evaluation import rank_users
    from fsbench.train.session import global_losses
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks, sharding="cost-aware", device=device, embedding=embedding)
    driver = Driver(trainer, 0, 10)
    driver.run()
    losses = global_losses(driver)
    counts = rank_users(trainer, trainer.workload.ranking())
    lanes = {name: lane.group.getBackendName() for name, lane in trainer.context.lanes.items()}
    close_trainer(trainer)
    return losses, counts.filtered, lanes


def test_a_gpu_follows_the_loss_curve_of_the_cpu(ranks):
    on_cpu, cpu_counts, _ = ranks.run(train, 1, "cpu", limit_s=120)[0]
    on_gpu, gpu_counts, lanes = ranks.run(train, 1, "cuda:0", limit_s=120)[0]
    assert on_gpu == pytest.approx(on_cpu, rel=1e-9)
    assert (cpu_counts == gpu_counts).mean() > 0.95
    assert lanes == {
        "control": "fsbench-gloo",
        "shuffle": "fsbench-gloo",
        "exchange": "fsbench-nccl",
        "dense": "fsbench-nccl",
    }


def test_prioritised_exchange_on_a_gpu_is_bit_equal_to_plain(ranks):
    plain, counts, _ = ranks.run(train, 1, "cuda:0", limit_s=120)[0]
    prioritized, other_counts, _ = ranks.run(train, 1, "cuda:0", "prioritized:check=true", limit_s=120)[0]
    assert prioritized == plain
    assert (counts == other_counts).all()


def test_a_run_on_a_gpu_says_so_and_claims_no_bubble(tmp_path):
    arguments = ["run", "--workload", support.TINY_LONG, "--on", "local:ranks=1", "--steps", "8"]
    done = subprocess.run(
        [sys.executable, "-m", "fsbench", *arguments, "--out", str(tmp_path / "set")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "set" / "runs.jsonl").read_text())
    assert record["kind"] == "gpu"
    assert record["metrics"]["samples_per_s"] > 0
    assert record["metrics"]["peak_gpu_mib"] > 0
    assert record["metrics"]["bubble"] is None
    assert "GPU" in record["missing"]["bubble"]

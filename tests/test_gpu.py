"""What changes on a GPU: the same training as on the CPU, through NCCL. Needs one CUDA device; `make gpu-check`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fsbench.options import Spec
from fsbench.plugins import create
from tests import support
from tests.exchanges import CASES, SPLITS, exchange, random_bits, same_bits, train_with
from tests.exchanges import train as train_cell

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


@pytest.mark.parametrize("embedding", ["plain:prefetch=1", "prioritized:check=true"])
def test_an_exact_exchange_on_a_gpu_is_bit_equal_to_plain(ranks, embedding):
    plain, counts, _ = ranks.run(train, 1, "cuda:0", limit_s=120)[0]
    ours, other_counts, _ = ranks.run(train, 1, "cuda:0", embedding, limit_s=120)[0]
    assert ours == plain
    assert (counts == other_counts).all()


def exchange_on_a_gpu(rank, ranks, spec, cases):
    """Several ranks on one GPU, which NCCL would refuse: which cases do not arrive, and who copied."""
    import torch

    from fsbench.axes import EXCHANGE, RankContext
    from fsbench.collect.timeline import Timeline
    from fsbench.train.lanes import open_lanes

    device, timeline = torch.device("cuda", 0), Timeline(["control", "shuffle", "exchange"])
    strategy = create("collectives", Spec.parse(spec))
    lanes = open_lanes([EXCHANGE], timeline, device, support.LIMIT, strategy.on_host)
    strategy.setup(RankContext(rank, ranks, device, torch.float32, 0, lanes, timeline, strategy))
    different = []
    for seed, (name, row, dtype) in enumerate(cases):
        splits = SPLITS[name](ranks, seed)
        sent = [random_bits(splits[r].sum(), row, dtype, seed * ranks + r, device) for r in range(ranks)]
        received = exchange(strategy, lanes["exchange"], rank, splits, sent[rank]).wait()
        expected = torch.cat([sent[r].split(splits[r].tolist())[rank] for r in range(ranks)])
        equal = [random_bits(3, row, dtype, seed * ranks + r, device) for r in range(ranks)]
        gathered = strategy.all_gather(lanes["exchange"], equal[rank], kind="state").wait()
        if not same_bits(received, expected) or not same_bits(gathered, torch.stack(equal)):
            different.append((name, row, dtype))
    copiers = strategy.evidence()["copies_by"]
    strategy.close()
    for lane in lanes.values():
        lane.close()
    return different, copiers


@pytest.mark.parametrize("spec", ["host-staged", "host-staged:chunk=60"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_staged_tensors_of_a_gpu_arrive_through_pinned_memory(ranks, count, spec):
    assert ranks.run(exchange_on_a_gpu, count, spec, CASES[::3], limit_s=120) == [([], ["copy engines"])] * count


@pytest.mark.parametrize("embedding", ["plain", "prioritized:check=true"])
def test_staged_training_has_the_loss_curve_of_the_backend_bit_for_bit(ranks, embedding):
    reference, on_nccl = train_with(ranks, 1, "cuda:0", embedding, "backend")[0]
    losses, lanes = train_with(ranks, 1, "cuda:0", embedding, "host-staged:chunk=256")[0]
    assert losses == reference
    assert (on_nccl["exchange"], lanes["exchange"]) == ("fsbench-nccl", "fsbench-gloo")
    assert (on_nccl["dense"], lanes["dense"]) == ("fsbench-nccl", "fsbench-nccl")


@pytest.mark.parametrize("embedding", ["plain", "prioritized:check=true", "prefetch-stale", "hot-first"])
def test_two_ranks_that_share_a_gpu_follow_the_loss_curve_of_the_cpu(ranks, embedding):
    """Through host memory alone: NCCL refuses two ranks on one GPU."""
    axes = {"embedding": embedding, "collectives": "host-staged", "sync": "none"}
    on_cpu, _ = ranks.run(train_cell, 2, "cpu", axes, limit_s=120)[0]
    on_gpu, lanes = ranks.run(train_cell, 2, "cuda:0", axes, limit_s=120)[0]
    assert on_gpu == pytest.approx(on_cpu, rel=1e-9)
    assert set(lanes.values()) == {"fsbench-gloo"}


def test_two_ranks_that_share_a_gpu_train_under_background_averaging(ranks):
    axes = {"embedding": "plain", "collectives": "host-staged", "sync": "shadow-ma"}
    losses, lanes = ranks.run(train_cell, 2, "cuda:0", axes, limit_s=120)[0]
    assert losses[-1] < losses[0]
    assert set(lanes.values()) == {"fsbench-gloo"}


def test_a_run_on_a_gpu_says_so_and_accounts_for_its_steps(tmp_path):
    arguments = ["run", "--workload", support.TINY_LONG, "--on", "local:ranks=1", "--steps", "8"]
    done = subprocess.run(
        [sys.executable, "-m", "fsbench", *arguments, "--out", str(tmp_path / "set")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "set" / "runs.jsonl").read_text())
    assert record["kind"] == "gpu"
    assert record["metrics"]["samples_per_s"] > 0
    assert record["metrics"]["peak_gpu_mib"] > 0
    assert 0 <= record["metrics"]["bubble"] < 1
    assert 0 < record["metrics"]["clock_bound_us"] < 1000
    assert record["metrics"]["bubble_preempted"] == 0


@pytest.mark.parametrize("by", ["nccl", "peers"])
def test_training_by_copy_engines_has_the_loss_curve_of_the_backend_bit_for_bit(ranks, by):
    reference, _ = train_with(ranks, 1, "cuda:0", "plain", "backend")[0]
    losses, lanes = train_with(ranks, 1, "cuda:0", "plain", f"copy-engine:by={by}")[0]
    assert losses == reference
    assert lanes["exchange"] == "fsbench-nccl"


def test_a_limit_on_multiprocessors_changes_no_bit(ranks):
    reference, _ = train_with(ranks, 1, "cuda:0", "plain", "backend")[0]
    limited, _ = train_with(ranks, 1, "cuda:0", "plain", "backend:sm_limit=2")[0]
    assert limited == reference


def test_calibrating_on_a_gpu_goes_by_the_clock(tmp_path):
    path = tmp_path / "profile.json"
    command = [sys.executable, "-m", "fsbench", "calibrate", "--workload", support.TINY_LONG, "--samples", "400"]
    done = subprocess.run([*command, "--out", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    profile = json.loads(path.read_text())
    assert profile["machine"]["device"] == "cuda"
    assert profile["measured"]["seconds"] == "by the clock"


def test_what_needs_compute_times_is_unsupported_on_a_gpu(tmp_path):
    command = [sys.executable, "-m", "fsbench", "run", "--workload", support.TINY_LONG, "--on", "local:ranks=1"]
    sharding = ["--sharding", "cost-aware:costs=online", "--steps", "4", "--out", str(tmp_path / "set"), "--quiet"]
    assert subprocess.run([*command, *sharding]).returncode == 1
    record = json.loads((tmp_path / "set" / "runs.jsonl").read_text())
    assert record["status"] == "unsupported"
    assert "compute on a GPU is not timed" in record["reason"]

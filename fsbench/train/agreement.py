"""What all ranks of a run must have in common, compared before they exchange anything else."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import fsbench
from fsbench.axes import AXES
from fsbench.errors import FsbenchError
from fsbench.launch.handover import Order
from fsbench.options import Spec
from fsbench.plugins import find_plugin
from fsbench.train.trainer import Strategies
from fsbench.workload import Workload

Facts = Mapping[str, str]
"""By what it is, for messages: `fsbench`, `torch`, `steps`, `data`, `sync allreduce`."""


def facts(order: Order, workload: Workload, strategies: Strategies, device: torch.device) -> Facts:
    """Of this rank. `workload` must be prepared."""
    parts = [_part("workload", "workloads", Spec.parse(order.cell["workload"]), workload)]
    parts += [_part(axis, axis, order.strategy(axis), getattr(strategies, axis)) for axis in AXES]
    return {
        "fsbench": fsbench.__version__,
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": device.type,
        "steps": str(order.steps),
        "seed": str(order.seed),
        "data": _digest(workload.fingerprint()),
        **dict(parts),
        "lanes": ", ".join(spec.name for spec in strategies.lane_specs),
    }


def require_agreement(own: Facts) -> None:
    """Collective, on the default group: one small all-gather if all is well.

    Raises:
        FsbenchError: on every rank, the facts that differ, with the ranks and their values.
    """
    digest = torch.from_numpy(np.frombuffer(bytes.fromhex(_digest(own)), np.uint8).copy())
    everyone = [torch.empty_like(digest) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, digest)
    if all(other.equal(digest) for other in everyone):
        return
    known: list[Any] = [None] * len(everyone)
    dist.all_gather_object(known, dict(own))
    raise FsbenchError(f"ranks do not agree: {differences(known)}")


def differences(known: Sequence[Facts]) -> str:
    """`rank 1 has fsbench 0.2.0, rank 0 0.1.0`, for each fact that differs. `known`: by rank."""
    names = dict.fromkeys(name for own in known for name in own)
    values = {name: [own.get(name, "none") for own in known] for name in names}
    return "; ".join(_difference(name, of) for name, of in values.items() if len(set(of)) > 1)


def _difference(name: str, values: Sequence[str]) -> str:
    rank = next(rank for rank, value in enumerate(values) if value != values[0])
    return f"rank {rank} has {name} {values[rank]}, rank 0 {values[0]}"


def _part(noun: str, kind: str, spec: Spec, instance: Any) -> tuple[str, str]:
    """Where a part of the cell comes from, and its options."""
    return f"{noun} {spec}", f"{find_plugin(kind, spec.name).origin}, options {instance.options}"


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True, default=repr).encode(), digest_size=16).hexdigest()

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
from fsbench.roles import ServerProcess
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
        "workers": str(order.workers),
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
    by_rank = {f"rank {rank}": facts for rank, facts in enumerate(known)}
    raise FsbenchError(f"ranks do not agree: {differences(by_rank)}")


def tell_facts(own: Facts, store: Any, server: ServerProcess) -> None:
    """Of a server, for rank 0, which meets it at `store`."""
    store.set(_key(server), json.dumps(dict(own)))


def require_same(own: Facts, store: Any, servers: Sequence[ServerProcess]) -> None:
    """On rank 0: what servers told is what the ranks agreed on.

    Raises:
        FsbenchError: the facts that differ, with the servers and their values.
    """
    known = {"rank 0": own, **{str(server): json.loads(store.get(_key(server))) for server in servers}}
    if found := differences(known):
        raise FsbenchError(f"ranks and servers do not agree: {found}")


def _key(server: ServerProcess) -> str:
    return f"facts/{server.lane}"


def differences(known: Mapping[str, Facts]) -> str:
    """`rank 1 has fsbench 0.2.0, rank 0 0.1.0`, for each fact that differs. `known`: by whose they are."""
    names = dict.fromkeys(name for own in known.values() for name in own)
    values = {name: {whose: own.get(name, "none") for whose, own in known.items()} for name in names}
    return "; ".join(_difference(name, of) for name, of in values.items() if len(set(of.values())) > 1)


def _difference(name: str, values: Mapping[str, str]) -> str:
    first, expected = next(iter(values.items()))
    other, found = next((whose, value) for whose, value in values.items() if value != expected)
    return f"{other} has {name} {found}, {first} {expected}"


def _part(noun: str, kind: str, spec: Spec, instance: Any) -> tuple[str, str]:
    """Where a part of the cell comes from, and its options."""
    return f"{noun} {spec}", f"{find_plugin(kind, spec.name).origin}, options {instance.options}"


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True, default=repr).encode(), digest_size=16).hexdigest()

"""The machine that compute times belong to."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any

from fsbench.results.manifest import cpu_model

if TYPE_CHECKING:
    import torch

CPU = "cpu"


def this_machine(device: torch.device, threads: int) -> dict[str, Any]:
    """`device`, its `model`, torch `threads` and the release of `torch`."""
    return {"device": device.type, "model": _model(device), "threads": threads, "torch": metadata.version("torch")}


def _model(device: torch.device) -> str | None:
    if device.type == CPU:
        return cpu_model()
    import torch

    return torch.cuda.get_device_name(device)

"""What ways of moving bytes that only a GPU has need of this machine, and what is missing. Imports torch only where
there is a CUDA driver."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata

from fsbench.collect.cuda_driver import driver_version

_NO_GPU = "found no CUDA driver; on a CPU take backend or host-staged"
_COPY_ENGINE_DRIVER = 12050
_COPY_ENGINE_TORCH = (2, 11)
_ZERO_CTA_NCCL = (2, 28)


@dataclass(frozen=True)
class Found:
    """`torch`: its release, empty without one. `driver`: the CUDA version that the driver knows, as 12050 for 12.5; 0
    without one. `nccl`: what torch brings; None without one. `zero_cta`: whether this torch can ask NCCL for it."""

    torch: str = ""
    driver: int = 0
    gpus: int = 0
    nccl: tuple[int, ...] | None = None
    zero_cta: bool = False


def look() -> Found:
    """At this machine."""
    try:
        torch_version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Found()
    driver = driver_version()
    if not driver:
        return Found(torch_version)
    import torch
    import torch.distributed as dist

    nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None
    zero_cta = nccl is not None and hasattr(dist.ProcessGroupNCCL, "NCCL_CTA_POLICY_ZERO")
    return Found(torch.__version__, driver, torch.cuda.device_count(), nccl, zero_cta)


def of_sm_limit(found: Found) -> str | None:
    """Why an operation cannot be kept to some multiprocessors, or None."""
    return _no_gpu("sm_limit needs a GPU, whose multiprocessors NCCL takes", found) or _no_nccl(found, (0,))


def of_copy_engines(found: Found, *, by_nccl: bool) -> str | None:
    """Why copy engines cannot move what ranks send each other, or None. `by_nccl`: whether NCCL would drive them."""
    if reason := _no_gpu("needs a GPU, whose copy engines move the bytes", found):
        return reason
    if _numbers(found.torch) < _COPY_ENGINE_TORCH:
        return f"needs torch {_text(_COPY_ENGINE_TORCH)} or newer, found {found.torch}"
    if not by_nccl:
        return None
    if found.driver < _COPY_ENGINE_DRIVER:
        return f"needs CUDA driver {_driver_text(_COPY_ENGINE_DRIVER)} or newer, found {_driver_text(found.driver)}"
    if reason := _no_nccl(found, _ZERO_CTA_NCCL):
        return reason
    return None if found.zero_cta else f"needs a torch that knows NCCL's zero-CTA policy; torch {found.torch} does not"


def _no_gpu(what: str, found: Found) -> str | None:
    if not found.driver:
        return f"{what}; {_NO_GPU}"
    return None if found.gpus else f"{what}; torch {found.torch} sees none"


def _no_nccl(found: Found, least: tuple[int, ...]) -> str | None:
    if found.nccl is None:
        return f"needs NCCL, torch {found.torch} has none"
    return None if found.nccl >= least else f"needs NCCL {_text(least)} or newer, found {_text(found.nccl)}"


def _numbers(version: str) -> tuple[int, ...]:
    """Major and minor: `2.13.0+cpu` to (2, 13)."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _driver_text(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"

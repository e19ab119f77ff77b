"""Provenance of a result set: enough to judge whether two sets compare, nothing that names machine or person.

No host name, no absolute path. What cannot be found is null, with its reason in `missing`.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import fsbench
from fsbench.matrix import Cell, RunSpec, Settings
from fsbench.plugins import FoundPlugin
from fsbench.results.manifest_shape import SCHEMA

_ENVIRONMENT = re.compile(r"OMP_NUM_THREADS|MKL_NUM_THREADS|CUDA_VISIBLE_DEVICES|NCCL_.*|TORCH_.*|FSBENCH_.*")
_NOT_RECORDED = re.compile(r"FSBENCH_DATA|NCCL_COMM_ID|NCCL_HOSTID|.*(TOKEN|SECRET|PASSW|CREDENTIAL|KEY).*")
"""Where data lies, what names a host, and what someone may have put among these that is for nobody else."""
_PACKAGES = ("torch", "torchrec", "numpy")
_PATH = re.compile(r"(?:^|(?<=[=,:;\s]))(?:~|/|[A-Za-z]:[\\/]).*")
# A finding is (value, None) or (None, why there is none).
Finding = tuple[Any, str | None]


def make_manifest(
    *,
    command: Sequence[str],
    settings: Settings,
    cells: Sequence[Cell],
    runs: Sequence[RunSpec],
    plugins: Iterable[FoundPlugin],
    options: Mapping[str, Mapping[str, Mapping[str, Any]]],
    data: Mapping[str, Any],
) -> dict[str, Any]:
    """Describes this machine and what is about to run on it. Imports no torch.

    Args:
        command: the arguments after `fsbench`.
        cells: in the order in which tables show them.
        runs: all runs of the set, in their order of execution.
        plugins: those that the runs use.
        options: by kind of plugin and spec, every option with its value, defaults too.
        data: fingerprint of the data by workload.
    """
    findings: dict[str, Finding] = {
        "git": _git(Path(fsbench.__file__).parent),
        "cpu": _cpu(),
        "gpus": _gpus(),
        "nccl": (None, "not known before a GPU run"),
        "topology": (None, "no collector for it in this version"),
    }
    return {
        "schema": SCHEMA,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": ["fsbench", *map(without_path, command)],
        "versions": _versions(),
        "plugins": [_origin(plugin) for plugin in sorted(set(plugins))],
        "options": _without_paths(options),
        **{name: value for name, (value, _) in findings.items()},
        "settings": dataclasses.asdict(settings),
        "seeds": sorted({run.seed for run in runs}),
        "cells": [dataclasses.asdict(cell) for cell in cells],
        "runs": [run.run_id for run in runs],
        "environment": environment(os.environ),
        "data": dict(data),
        "missing": {name: reason for name, (_, reason) in findings.items() if reason},
    }


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that change how training runs, out of an allow-list."""
    return {
        name: without_path(value)
        for name, value in sorted(variables.items())
        if _ENVIRONMENT.fullmatch(name) and not _NOT_RECORDED.fullmatch(name)
    }


def without_path(text: str) -> str:
    """The text with an absolute path in it, alone or after one of `=,:;`, replaced by `<path>`."""
    return _PATH.sub("<path>", text)


def _without_paths(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_paths(item) for name, item in value.items()}
    return without_path(value) if isinstance(value, str) else value


def _origin(plugin: FoundPlugin) -> dict[str, str]:
    return {
        "kind": plugin.kind,
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
    }


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"fsbench": fsbench.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return versions


def _git(folder: Path) -> Finding:
    """The commit that `folder` was checked out from.

    A folder that merely lies inside someone's repository, as an installed package may, is no checkout of it.
    """
    try:
        _run_git(folder, "ls-files", "--error-unmatch", "__init__.py")
        commit = _run_git(folder, "rev-parse", "HEAD")
        changes = _run_git(folder, "status", "--porcelain")
    except (OSError, subprocess.SubprocessError):
        return None, "fsbench does not run from a git checkout"
    return {"commit": commit, "dirty": bool(changes)}, None


def _run_git(folder: Path, *arguments: str) -> str:
    command = ("git", "-C", str(folder), *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def _cpu() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"model": cpu_model(), "cores": cores, "memory_mib": _memory_mib()}, None


def cpu_model() -> str | None:
    """What the processor calls itself; None where the system does not tell."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or None
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.machine() or None


def _memory_mib() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    except (AttributeError, OSError, ValueError):
        return None


def _gpus() -> Finding:
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        return None, "nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except Exception as error:
        return None, f"NVML: {error}"
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [_gpu(pynvml, handle) for handle in handles], None
    except Exception as error:
        return None, f"NVML: {error}"
    finally:
        pynvml.nvmlShutdown()


def _gpu(nvml: Any, handle: Any) -> dict[str, Any]:
    """Each question is guarded alone: devices and drivers exist that answer some and refuse others."""
    return {
        "name": _ask(lambda: _text(nvml.nvmlDeviceGetName(handle))),
        "memory_mib": _ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total // 2**20),
        "driver": _ask(lambda: _text(nvml.nvmlSystemGetDriverVersion())),
    }


def _ask(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except Exception:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value

"""Samples of one GPU while a rank trains: NVML, asked by a thread beside it.

No bubble comes from here: to NVML a GPU that spins in a collective is busy. What is missing (the module, the driver, a
permission, a metric of a MIG device) is a reason in the record and never the end of a run.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from fsbench.collect.nvml_questions import QUESTIONS, Question
from fsbench.metrics.gpus import GpuSamples, Sample

if TYPE_CHECKING:
    import torch

INTERVAL_S = 0.1
CAPACITY = 2**16
"""Samples: 1.8 hours of them. Older ones are dropped, and counted."""


class Sampled(Protocol):
    def samples(self) -> GpuSamples:
        """Everything so far, and why the rest is missing."""


class NoSampler:
    """Where there is nothing to ask."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def samples(self) -> GpuSamples:
        return GpuSamples.none(self._reason, os.getpid())


class Sampler:
    """Asks about one device, at first, every `interval_s` on a thread of its own, and at the end.

    A question that fails is not asked again: one that fails at the first time is unknown here, one that fails later is
    known up to then, which `refused` tells apart.

    Args:
        nvml: the module, initialised.
        device: identifies the device among ranks: its UUID.
        mig: it is a part of a GPU, of which some questions make no sense.
    """

    def __init__(
        self,
        nvml: Any,
        handle: Any,
        device: str,
        *,
        mig: bool,
        interval_s: float = INTERVAL_S,
        capacity: int = CAPACITY,
    ) -> None:
        self._nvml = nvml
        self._handle = handle
        self._device = device
        self._mig = mig
        self._interval_s = interval_s
        self._ring: deque[Sample] = deque(maxlen=capacity)
        self._taken = 0
        self._refused: dict[str, str] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="nvml", daemon=True)

    def start(self) -> None:
        self.take()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self.take()

    def take(self) -> None:
        """One sample, now."""
        at_ns = time.monotonic_ns()
        answers: dict[str, Any] = {}
        for question in QUESTIONS:
            if question.name not in self._refused:
                self._ask(question, answers)
        self._ring.append(Sample(at_ns, answers))
        self._taken += 1

    def _ask(self, question: Question, answers: dict[str, Any]) -> None:
        try:
            answers[question.name] = question.answer(self._nvml, self._handle)
        except Exception as error:
            reason = f"{reason_of(error)}{' (on a MIG device)' if self._mig else ''}"
            self._refused[question.name] = f"after {self._taken} samples: {reason}" if self._taken else reason

    def _sample(self) -> None:
        while not self._stopped.wait(self._interval_s):
            self.take()

    def samples(self) -> GpuSamples:
        return GpuSamples(
            device=self._device,
            pid=os.getpid(),
            interval_s=self._interval_s,
            kinds={question.name: question.kind for question in QUESTIONS},
            refused=dict(self._refused),
            taken=list(self._ring),
            dropped=self._taken - len(self._ring),
        )


@contextmanager
def sampling(device: torch.device) -> Iterator[Sampled]:
    """Samples the device of a rank for as long as it is entered."""
    nvml, reason = _open(device)
    if nvml is None:
        yield NoSampler(reason)
        return
    try:
        with _sampled(nvml, device) as sampler:
            yield sampler
    finally:
        nvml.nvmlShutdown()


def _open(device: torch.device) -> tuple[Any, str]:
    """The module, initialised, or None and why."""
    if device.type != "cuda":
        return None, "trained on CPU"
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except ImportError:
        return None, "nvidia-ml-py is not installed; pip install 'fsbench[gpu]'"
    except Exception as error:
        return None, reason_of(error)
    return nvml, ""


@contextmanager
def _sampled(nvml: Any, device: torch.device) -> Iterator[Sampled]:
    uuid, reason = uuid_of(device), ""
    found: tuple[Any, bool] | None = None
    try:
        found = find(nvml, uuid)
    except LookupError as error:
        reason = str(error)
    if found is None:
        yield NoSampler(reason)
        return
    handle, mig = found
    sampler = Sampler(nvml, handle, str(uuid), mig=mig)
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.stop()


def uuid_of(device: torch.device) -> str | None:
    """The UUID of a CUDA device, without a prefix: CUDA's numbers follow CUDA_VISIBLE_DEVICES and its own order, NVML's
    do not."""
    import torch

    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else str(uuid)


def find(nvml: Any, uuid: str | None) -> tuple[Any, bool]:
    """NVML's handle of a device by its UUID, and whether it is, or is split into, MIG devices.

    Raises:
        LookupError: this torch tells no UUID, or NVML knows no device of that UUID.
    """
    if uuid is None:
        raise LookupError("torch tells no UUID of its device, so that it cannot be found in NVML")
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except nvml.NVMLError:
        return _find_part(nvml, uuid), True
    try:
        return handle, bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except (nvml.NVMLError, AttributeError):
        return handle, False  # older than MIG


def _find_part(nvml: Any, uuid: str) -> Any:
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
    except nvml.NVMLError as error:
        raise LookupError(f"NVML knows no device of the UUID that torch tells: {error}") from None


def reason_of(error: Exception) -> str:
    """Why a question has no answer, for the record."""
    if isinstance(error, AttributeError):
        return f"nvidia-ml-py is too old: {error}"
    return f"NVML: {str(error) or type(error).__name__}"

"""The CUDA driver of this machine, asked without torch, which takes seconds to import."""

from __future__ import annotations

import ctypes


def driver_version() -> int:
    """The CUDA version that it knows, as 12050 for 12.5; 0 without one. Needs no device."""
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return 0
    return 0 if failed else version.value

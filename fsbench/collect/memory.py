"""Memory of this process."""

from __future__ import annotations

import resource
import sys


def peak_rss_mib() -> float:
    """The most that was resident so far."""
    unit = 1 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20

"""Model averaging by a background thread."""

from __future__ import annotations

from fsbench_strategies.sync.averaged import Averaged
from fsbench_strategies.sync.shadow import Shadow


class ShadowMA(Averaged, Shadow):
    """Averages the dense parameters over ranks in the background, again and again; training never waits.

    In the manner of ShadowSync (arXiv 2003.03477). A rank that has finished stays in the sum, inactive, until all have:
    its vote travels in the payload.
    """

    Options = Shadow.Options
    options: Shadow.Options

"""Model averaging in the foreground: the twin of `shadow-ma`, at a fixed rate."""

from __future__ import annotations

from fsbench_strategies.sync.averaged import Averaged
from fsbench_strategies.sync.foreground import Foreground


class ForegroundMA(Averaged, Foreground):
    """Averages the dense parameters over ranks every k own steps, while training waits.

    The same payload, rule and kind of group as `shadow-ma` (McMahan et al. 2017, arXiv 1602.05629; ShadowSync's FR-MA
    in the manner of arXiv 2003.03477).
    """

    Options = Foreground.Options
    options: Foreground.Options

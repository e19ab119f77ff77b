"""Block momentum by a background thread."""

from __future__ import annotations

from dataclasses import dataclass

from fsbench_strategies.sync.averaged import BlockMomentum, MomentumOptions
from fsbench_strategies.sync.shadow import Shadow


class ShadowBMUF(BlockMomentum, Shadow):
    """Averages in the background and draws replicas to a global copy that follows the mean with momentum.

    BMUF (Chen and Huo 2016) in the manner of ShadowSync (arXiv 2003.03477). What training learns during a round counts
    in the next one, so that blocks overlap: a lower momentum than in the foreground is the safe start. With
    `momentum=0,step_size=1` it is `shadow-ma`.
    """

    @dataclass(frozen=True)
    class Options(MomentumOptions, Shadow.Options):
        """Those of `shadow-ma`. `momentum`: in [0, 1), of the global copy from round to round. `step_size`: how much of
        the way to the mean it goes itself. `nesterov`: whether it is ahead by what momentum will add anyway."""

        def __post_init__(self) -> None:
            super().__post_init__()
            self.check_momentum()

    options: Options

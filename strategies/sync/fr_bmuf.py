"""Block momentum in the foreground: the twin of `shadow-bmuf`, at a fixed rate."""

from __future__ import annotations

from dataclasses import dataclass

from fsbench_strategies.sync.averaged import BlockMomentum, MomentumOptions
from fsbench_strategies.sync.foreground import Foreground


class ForegroundBMUF(BlockMomentum, Foreground):
    """Averages every k own steps and sets replicas to a global copy that follows the mean with momentum.

    The same payload, rule and kind of group as `shadow-bmuf` (BMUF, Chen and Huo 2016). With `momentum=0,step_size=1`
    it is `fr-ma`.
    """

    @dataclass(frozen=True)
    class Options(MomentumOptions, Foreground.Options):
        """Those of `fr-ma`. `momentum`: in [0, 1), of the global copy from round to round. `step_size`: how much of the
        way to the mean it goes itself. `nesterov`: whether it is ahead by what momentum will add anyway."""

        def __post_init__(self) -> None:
            super().__post_init__()
            self.check_momentum()

    options: Options

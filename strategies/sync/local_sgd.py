"""Local SGD."""

from __future__ import annotations

from dataclasses import dataclass

from fsbench_strategies.sync.fr_ma import ForegroundMA


class LocalSGD(ForegroundMA):
    """Averages the parameters every k steps, and steps locally in between (Stich 2019, arXiv 1805.09767).

    It is `fr-ma` with a full step to the mean, under its usual name and at a usual rate: as often as torchrec's
    `SemisyncOptimizer` by default.
    """

    @dataclass(frozen=True)
    class Options(ForegroundMA.Options):
        """`every`: own steps between two averages. `alpha`: less than 1 makes it elastic."""

        every: int = 16

"""DiLoCo: local steps, and an outer optimizer on what they made of the parameters."""

from __future__ import annotations

from dataclasses import dataclass

from fsbench_strategies.sync.fr_bmuf import ForegroundBMUF


class DiLoCo(ForegroundBMUF):
    """Steps locally, and every k steps takes one outer Nesterov SGD step on the averaged way that replicas went.

    Douillard et al. 2023, arXiv 2311.08105: the way back from the mean of the replicas to the global copy is the outer
    gradient. That is `fr-bmuf` with Nesterov's momentum 0.9 and step size 0.7, the outer learning rate. The paper's k
    is 500, for language models that are trained far longer than one pass over a small data set takes.
    """

    @dataclass(frozen=True)
    class Options(ForegroundBMUF.Options):
        """As of `fr-bmuf`: `momentum`, `step_size` and `nesterov` are the outer optimizer's."""

        every: int = 30
        momentum: float = 0.9
        step_size: float = 0.7
        nesterov: bool = True

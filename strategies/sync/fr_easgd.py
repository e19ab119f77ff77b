"""Elastic averaging in the foreground: the twin of `shadow-easgd`, at a fixed rate."""

from __future__ import annotations

from dataclasses import dataclass

from fsbench_strategies.sync.elastic import Elastic, ElasticOptions
from fsbench_strategies.sync.foreground import Foreground


class ForegroundEASGD(Elastic, Foreground):
    """Draws each replica and a central copy on server processes to each other every k own steps, while training waits.

    The same rule, payload and servers as `shadow-easgd` (EASGD, Zhang, Choromanska and LeCun 2015, arXiv 1412.6651). A
    rank waits for the servers, and not for other ranks.
    """

    @dataclass(frozen=True)
    class Options(ElasticOptions, Foreground.Options):
        """`every`: own steps between two rounds. `alpha`, `servers`, `order`: as of `shadow-easgd`."""

        alpha: float = 0.5

        def __post_init__(self) -> None:
            super().__post_init__()
            self.check_servers()

    options: Options

"""Elastic averaging by a background thread."""

from __future__ import annotations

from dataclasses import dataclass

from fsbench_strategies.sync.elastic import Elastic, ElasticOptions
from fsbench_strategies.sync.shadow import Shadow


class ShadowEASGD(Elastic, Shadow):
    """Draws each replica and a central copy on server processes to each other in the background, rank by rank.

    EASGD (Zhang, Choromanska and LeCun 2015, arXiv 1412.6651) in the manner of ShadowSync (arXiv 2003.03477): no
    collective, no barrier; each rank is alone with the servers, as often as it comes to it.
    """

    @dataclass(frozen=True)
    class Options(ElasticOptions, Shadow.Options):
        """Those of `shadow-ma`; by `alpha` the central copy moves too. `servers`: processes that share it by
        consecutive slices. `order`: in `push-pull` the copy moves first, and the replica to where it then is (with
        alpha=1 a replica learns from nobody); in `symmetric` each moves to where the other was (alpha=1 swaps)."""

        def __post_init__(self) -> None:
            super().__post_init__()
            self.check_servers()

    options: Options

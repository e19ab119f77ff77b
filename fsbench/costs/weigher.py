"""Weighs samples and ranks for a balancer: what fills `BatchMeta.costs` and `BatchMeta.speeds`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsbench.axes import Sharding
from fsbench.costs.features import of_batch
from fsbench.costs.machine import CPU
from fsbench.costs.profile import Profile, profile_path
from fsbench.costs.sources import Costs, FlopCosts, OnlineCosts, ProfiledCosts
from fsbench.costs.speeds import RankSpeeds
from fsbench.errors import DataError, Unsupported
from fsbench.samples import Samples
from fsbench.workload import Loader

Float64 = NDArray[np.float64]


def weighing(sharding: Sharding) -> Sharding.Options:
    """How a sharding wants samples and ranks weighed; operations and equal speeds where its options do not say."""
    options = sharding.options
    return options if isinstance(options, Sharding.Options) else Sharding.Options()


def needs_times(sharding: Sharding) -> bool:
    """Whether ranks must tell each other how long they computed."""
    asked = weighing(sharding)
    return asked.costs == "online" or asked.speeds == "measured"


class Weigher:
    """One a rank; told the same on every rank.

    Args:
        sharding: whose options are followed.
        workload: prepared.
        here: this machine, see `this_machine`.

    Raises:
        Unsupported: times are asked for where compute is not timed.
        DataError: a profile that is not there, or is damaged.
        UserError: a profile of something else.
    """

    def __init__(self, sharding: Sharding, workload: Loader, ranks: int, here: Mapping[str, Any]) -> None:
        asked = weighing(sharding)
        self.timed: bool = here["device"] == CPU
        """Whether compute is timed at all: the host's clock does not see a GPU."""
        if needs_times(sharding) and not self.timed:
            raise Unsupported(
                f"costs={asked.costs},speeds={asked.speeds}: compute on a GPU is not timed in this version"
            )
        self.costs = _costs(asked, workload, here)
        self.token_limit = asked.token_limit
        self._sharding = sharding
        self._ranks = ranks
        self._speeds = RankSpeeds(ranks) if asked.speeds == "measured" else None

    @property
    def speeds(self) -> Float64:
        """float64[ranks]."""
        return self._speeds.relative() if self._speeds else np.ones(self._ranks)

    def learn(self, cost: Float64, features: Float64, seconds: Float64) -> None:
        """A step that the ranks have trained, [ranks] each: summed costs of its samples, features, measured compute."""
        if self._speeds:
            self._speeds.observe(cost, seconds)
        self.costs.learn(features, seconds * self.speeds)

    def evidence(self) -> dict[str, Any]:
        """For the record. `repeatable`: whether another run of the same cell assigns alike."""
        return {
            "costs": self.costs.evidence(),
            "speeds": self.speeds.tolist() if self._speeds else "equal",
            "repeatable": self.costs.repeatable and self._speeds is None and self._sharding.repeatable,
        }


def _costs(asked: Sharding.Options, workload: Loader, here: Mapping[str, Any]) -> Costs:
    if asked.costs == "flops":
        return FlopCosts(workload)
    if asked.costs == "online":
        return OnlineCosts(workload)
    profile = Profile.of(workload, asked.profile)
    first: Samples = workload.load(0, 0, 1)
    described, known = set(of_batch(workload, first)), set(profile.coefficients_s)
    if described != known:
        raise DataError(
            f"{profile_path(workload, asked.profile)}: has coefficients for {', '.join(sorted(known))}; the workload "
            f"is described by {', '.join(sorted(described))}; calibrate again"
        )
    return ProfiledCosts(workload, profile, here)

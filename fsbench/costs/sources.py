"""Where the costs of samples come from: `Sharding.Options.costs`.

A source is told what every rank trained and how long that took, the same on every rank; what it makes of it, it tells
its own rank alone. Each rank weighs the samples that it loads, and the balancers see what was gathered: were two
machines to fit in a last digit apart, all ranks would still assign alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsbench.costs.features import BATCH, of_batch, of_samples
from fsbench.costs.fit import Errors, RecursiveFit
from fsbench.costs.profile import Profile
from fsbench.samples import Samples
from fsbench.workload import Loader

Float64 = NDArray[np.float64]

SETTLING = 3
"""Steps of a run that pay for what happens once: memory, kernels chosen. `online` looks away."""
ROWS_A_COEFFICIENT = 4
"""Rank-batches that must have been seen for each coefficient before `online` trusts its fit."""
KEPT = 0.92
"""What is left of a step's weight a step later under `online`: half of it goes in 8 steps."""


class Costs(ABC):
    """`repeatable`: whether another run of the same cell gives the same costs."""

    repeatable = True

    def __init__(self, workload: Loader) -> None:
        self.workload = workload

    @abstractmethod
    def of(self, samples: Samples) -> Float64:
        """float64[n], the cost of each sample."""

    @property
    def fixed(self) -> float:
        """The cost of a rank-batch beside that of its samples."""
        return 0.0

    def features(self, samples: Samples) -> Float64:
        """float64[k], what `learn` is to know of a rank-batch; k is the same for any."""
        return np.zeros(0)

    def learn(self, features: Float64, seconds: Float64) -> None:
        """What the ranks trained in a step, float64[ranks, k], and what it took, float64[ranks], all above 0; taken to
        a common speed of the ranks where that is measured."""

    @abstractmethod
    def evidence(self) -> dict[str, Any]:
        """For the record."""


class FlopCosts(Costs):
    """The workload's own count of operations."""

    def of(self, samples: Samples) -> Float64:
        return self.workload.costs(samples)

    def evidence(self) -> dict[str, Any]:
        return {"source": "flops"}


class FittedCosts(Costs):
    """Seconds, by a coefficient for each feature; none while `coefficients` is empty."""

    def __init__(self, workload: Loader) -> None:
        super().__init__(workload)
        self.coefficients: Mapping[str, float] = {}
        self._names: tuple[str, ...] = ()
        self._errors = Errors()

    @property
    def fixed(self) -> float:
        return self.coefficients.get(BATCH, 0.0)

    def of(self, samples: Samples) -> Float64:
        described = of_samples(self.workload, samples)
        return np.sum([self.coefficients[name] * values for name, values in described.items()], axis=0)

    def features(self, samples: Samples) -> Float64:
        described = of_batch(self.workload, samples)
        self._names = tuple(described)
        return np.array(list(described.values()))

    def learn(self, features: Float64, seconds: Float64) -> None:
        self._errors.add(features @ np.array([self.coefficients[name] for name in self._names]), seconds)

    def evidence(self) -> dict[str, Any]:
        return {"coefficients_s": dict(self.coefficients), "this_run": self._errors.summary()}


class ProfiledCosts(FittedCosts):
    """What `fsbench calibrate` measured. `here`: this machine, as a profile describes one."""

    def __init__(self, workload: Loader, profile: Profile, here: Mapping[str, Any]) -> None:
        super().__init__(workload)
        self.coefficients = profile.coefficients_s
        self._profile = profile
        self._elsewhere = profile.elsewhere(here)

    def evidence(self) -> dict[str, Any]:
        """With the error that calibration found, and the profile's machine where it is another one."""
        return {
            "source": "profile",
            "held_out_error": dict(self._profile.error),
            "machine_differs": self._elsewhere,
            **super().evidence(),
        }


class OnlineCosts(FittedCosts):
    """Fitted to the run's own compute times, the recent ones most; operations until there are enough of them."""

    repeatable = False

    def __init__(self, workload: Loader) -> None:
        super().__init__(workload)
        self._fit: RecursiveFit | None = None
        self._steps = 0

    def of(self, samples: Samples) -> Float64:
        return super().of(samples) if self.coefficients else self.workload.costs(samples)

    def learn(self, features: Float64, seconds: Float64) -> None:
        self._steps += 1
        if self._steps <= SETTLING:
            return
        if self.coefficients:
            super().learn(features, seconds)
        fit = self._fit = self._fit or RecursiveFit(len(self._names), KEPT)
        fit.add(features, seconds)
        fitted = dict(zip(self._names, fit.coefficients().tolist(), strict=True))
        if fit.rows >= ROWS_A_COEFFICIENT * len(fitted) and any(s for name, s in fitted.items() if name != BATCH):
            self.coefficients = fitted

    def evidence(self) -> dict[str, Any]:
        return {"source": "online", **super().evidence()}

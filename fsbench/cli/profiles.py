"""Whether the cost profiles that a plan asks for are there, and are those of its workloads."""

from __future__ import annotations

import warnings
from importlib import metadata
from typing import Any

from fsbench.cli.plan import Choice, Plan
from fsbench.costs.profile import Profile, profile_path
from fsbench.costs.weigher import weighing
from fsbench.results.manifest import cpu_model


def check_profiles(plan: Plan) -> None:
    """Warns of profiles that were measured on another machine.

    Raises:
        DataError: a profile is missing or damaged.
        UserError: it is that of another workload, or of other options.
    """
    for sharding in plan.choices["sharding"]:
        asked = weighing(sharding.instance)
        if asked.costs != "profile":
            continue
        for workload in plan.choices["workloads"]:
            profile = Profile.of(workload.instance, asked.profile)
            for cluster in plan.choices["clusters"]:
                if differences := profile.elsewhere(_ranks_of(cluster, profile)):
                    path = profile_path(workload.instance, asked.profile)
                    warnings.warn(
                        f"{path} was not measured on what {cluster.spec} is: {'; '.join(differences)}", stacklevel=2
                    )


def _ranks_of(cluster: Choice, profile: Profile) -> dict[str, Any]:
    """What is known of a cluster's ranks before they start. Whether they have GPUs, only torch could tell."""
    threads = cluster.instance.environment().get("OMP_NUM_THREADS")
    known: dict[str, Any] = {"torch": metadata.version("torch")}
    if threads is not None:
        known["threads"] = int(threads)
    if profile.machine.get("device") == "cpu":
        known["model"] = cpu_model()
    return known

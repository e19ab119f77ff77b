"""`fsbench calibrate`: measures what the samples of a workload cost on this machine, for `costs=profile`."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsbench.cli.needs import require_torch
from fsbench.cli.options import data_dir
from fsbench.cli.request import DEFAULT_CHOICES
from fsbench.errors import FsbenchError, UserError
from fsbench.options import Spec
from fsbench.plugins import create

if TYPE_CHECKING:
    from fsbench.costs.profile import Profile
    from fsbench.workload import Workload

SEED = 1
"""Of the data, the sample and the model; see also `fsbench data info`."""


@click.command()
@click.option(
    "--workload",
    default=DEFAULT_CHOICES["workloads"],
    show_default=True,
    metavar="NAME[:OPTIONS]",
    help="What to measure.",
)
@click.option("--samples", type=click.IntRange(1), default=2048, show_default=True, help="The most samples to train.")
@click.option(
    "--seconds", type=click.FloatRange(0, min_open=True), default=30.0, show_default=True, help="The most time to take."
)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Torch threads, as ranks have.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of the profile.  [default: in results/profiles, where costs=profile looks for it]",
)
@data_dir
@click.pass_context
def calibrate(
    ctx: click.Context,
    workload: str,
    samples: int,
    seconds: float,
    threads: int,
    out: Path | None,
    data_dir: Path | None,
) -> None:
    """Measure what the samples of a workload cost to train on this machine.

    The profile that is left balances shardings with the option costs=profile.
    """
    # Here, because these need numpy, which `fsbench --help` can do without.
    from fsbench.cli.profile_text import describe
    from fsbench.costs.profile import make_room, profile_path

    require_torch()
    if math.isnan(seconds):
        raise UserError("--seconds is nan, expected a number above 0")
    spec = Spec.parse(workload)
    chosen = create("workloads", spec)
    environment = create("clusters", Spec("local", {"ranks": "1", "threads": str(threads)})).environment()
    if any(os.environ.get(name) != value for name, value in environment.items()):
        ctx.exit(_again(environment, ctx.obj))
    path = out or profile_path(chosen)
    make_room(path)
    chosen.prepare(data_dir, SEED)
    profile = _measure(spec.name, chosen, samples, seconds, threads)
    profile.write(path)
    click.echo(f"{describe(profile)}\n\nprofile: {path}")


def _again(environment: Mapping[str, str], arguments: Sequence[str]) -> int:
    """The same command in a process that starts in the environment of a rank: memory is handled as there from the
    first allocation on, or a third of the time measured would be page faults."""
    from fsbench.launch.explain import how_ended
    from fsbench.launch.process import die_with_parent

    command = [sys.executable, "-m", "fsbench", *arguments]
    # In a session of its own, so that a Ctrl-C is told once: here. The process ends with the wait for it.
    ended = subprocess.run(
        command, env={**os.environ, **environment}, start_new_session=True, preexec_fn=die_with_parent, check=False
    )
    if ended.returncode < 0:
        raise FsbenchError(f"calibration was {how_ended(ended.returncode)}")
    return ended.returncode


def _measure(name: str, workload: Workload, samples: int, seconds: float, threads: int) -> Profile:
    import torch

    from fsbench.costs.calibration import calibrate as measure

    torch.set_num_threads(threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return measure(name, workload, samples=samples, seconds=seconds, seed=SEED, device=device)

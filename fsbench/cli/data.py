"""`fsbench data`: gets the data of a workload, and says what it is."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fsbench.cli.options import data_dir
from fsbench.options import Spec
from fsbench.plugins import create

SEED = 1


@click.group()
def data() -> None:
    """Fetch a workload's data, or describe it."""


@data.command()
@click.argument("name")
@data_dir
def fetch(name: str, data_dir: Path | None) -> None:
    """Get the data of workload NAME[:OPTIONS]."""
    workload = create("workloads", Spec.parse(name))
    click.echo(f"{name}: {workload.fetch(data_dir)}")


@data.command()
@click.argument("name")
@data_dir
def info(name: str, data_dir: Path | None) -> None:
    """Prepare the data of workload NAME[:OPTIONS] and print its fingerprint, as a manifest holds it."""
    workload = create("workloads", Spec.parse(name))
    workload.prepare(data_dir, SEED)
    click.echo(json.dumps(workload.fingerprint(), indent=2, ensure_ascii=False, allow_nan=False))

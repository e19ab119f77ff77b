"""`fsbench show`: the table of a result set."""

from __future__ import annotations

from pathlib import Path

import click

from fsbench.errors import UserError
from fsbench.results.store import ResultSet
from fsbench.results.table import FORMATS, render


@click.command()
@click.argument("result", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(FORMATS), default="table", show_default=True)
def show(result: Path, form: str) -> None:
    """The table of a result set. RESULT is its folder, or the runs.jsonl in it."""
    result_set = ResultSet.open(result)
    records = result_set.records()
    if not records:
        raise UserError(f"{result} holds no recorded run yet")
    click.echo(render(records, form, result_set.manifest()))

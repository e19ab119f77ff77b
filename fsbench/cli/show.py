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
@click.pass_context
def show(ctx: click.Context, result: Path, form: str) -> None:
    """The table of a result set. RESULT is its folder, or the runs.jsonl in it.

    What cannot be read of it is named, the rest is shown, and the exit code is 1.
    """
    contents = ResultSet.open(result).read()
    if not contents.records:
        raise UserError(f"{result} holds no {'run that can be read' if contents.unread else 'recorded run yet'}")
    click.echo(render(contents.records, form, contents.manifest))
    ctx.exit(int(bool(contents.unread)))

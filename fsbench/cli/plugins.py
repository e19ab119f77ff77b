"""`fsbench plugins check`: does a strategy keep its contract?"""

from __future__ import annotations

import contextlib

import click

from fsbench.cli.needs import require_torch
from fsbench.results.printable import one_line, visible


@click.group()
def plugins() -> None:
    """Look at installed plugins."""


@plugins.command()
@click.argument("name")
@click.argument("kind", required=False)
@click.pass_context
def check(ctx: click.Context, name: str, kind: str | None) -> None:
    """Check every promise of strategy NAME[:OPTIONS] on 1, 2 and 3 local ranks; exit 1 if it breaks one, or
    cannot run here.

    KIND is one of sharding, embedding, collectives, sync: needed where strategies of several have that name.
    """
    require_torch()
    from fsbench.launch.leftovers import janitor
    from fsbench.testing.find import find_strategy
    from fsbench.testing.pool import shared_pool
    from fsbench.testing.suite import judge_all

    # The pool first, so that the janitor stays until its ranks and their files are gone.
    with janitor(), contextlib.closing(shared_pool()):
        case = find_strategy(name, kind)
        if not case.probe.fault:
            _ = case.strategy  # wrong options are bad input, and no fault of the strategy
        click.echo(f"{visible(str(case.found))}:")
        unmet = None if case.probe.fault else case.strategy.requirements()
        counts = dict.fromkeys(("PASS", "FAIL", "SKIP"), 0)
        for verdict in judge_all(case):
            counts[verdict.status] += 1
            if not (unmet and verdict.status == "SKIP"):
                click.echo(visible(f"{verdict.status}  {verdict.check}: {one_line(verdict.reason or verdict.promise)}"))
        if unmet:
            click.echo(visible(f"SKIP  all others: it cannot run here: {one_line(unmet)}"))
    click.echo(f"{counts['PASS']} passed, {counts['FAIL']} failed, {counts['SKIP']} skipped")
    ctx.exit(1 if counts["FAIL"] or unmet else 0)

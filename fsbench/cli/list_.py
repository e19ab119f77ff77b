"""`fsbench list`: what is installed. Reads metadata and source text only, so it is fast and cannot break."""

from __future__ import annotations

from collections.abc import Callable

import click
from tabulate import tabulate

from fsbench.plugins import KINDS, FoundPlugin, find_plugins
from fsbench.results.printable import one_line, visible
from fsbench.summary import summary


@click.command("list")
@click.argument("axis", required=False)
@click.option("--check", is_flag=True, help="Import each in a process of its own; exit 1 if any is broken.")
@click.pass_context
def list_plugins(ctx: click.Context, axis: str | None, check: bool) -> None:
    """Every installed strategy, workload and cluster.

    AXIS is one of sharding, embedding, collectives, sync, workloads, clusters.
    """
    plugins = [plugin for kind in ([axis] if axis else KINDS) for plugin in find_plugins(kind)]
    columns: dict[str, Callable[[FoundPlugin], str]] = {
        "axis": lambda plugin: plugin.kind,
        "name": lambda plugin: plugin.name,
        "summary": summary,
        "origin": lambda plugin: plugin.origin,
    }
    faults = _faults(plugins) if check else {}
    if check:
        columns["check"] = lambda plugin: f"error: {faults[plugin]}" if faults[plugin] else "ok"
    rows = [[visible(text(plugin)) for text in columns.values()] for plugin in plugins]
    click.echo(tabulate(rows, list(columns), tablefmt="plain", disable_numparse=True))
    ctx.exit(1 if any(faults.values()) else 0)


def _faults(plugins: list[FoundPlugin]) -> dict[FoundPlugin, str | None]:
    """What is wrong with each plugin, or None; in one line."""
    from fsbench.probe import probe_all

    faults = {plugin: done.fault for plugin, done in probe_all(plugins).items()}
    return {plugin: one_line(fault) if fault else None for plugin, fault in faults.items()}

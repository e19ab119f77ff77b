"""`fsbench list`: what is installed. Reads metadata and source text only, so it is fast and cannot break."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import click
from tabulate import tabulate

from fsbench.plugins import KINDS, FoundPlugin, find_plugins, summary

CHECK_LIMIT_S = 60
_LOAD = """
import sys
from fsbench.errors import FsbenchError
from fsbench.plugins import load_plugin
try:
    load_plugin(*sys.argv[1:])
except FsbenchError as error:
    sys.exit(str(error))
"""


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
    faults = _check(plugins) if check else {}
    if check:
        columns["check"] = lambda plugin: faults[plugin] or "ok"
    rows = [[text(plugin) for text in columns.values()] for plugin in plugins]
    click.echo(tabulate(rows, list(columns), tablefmt="plain", disable_numparse=True))
    ctx.exit(1 if any(faults.values()) else 0)


def _check(plugins: Sequence[FoundPlugin]) -> dict[FoundPlugin, str | None]:
    """What is wrong with each plugin, or None."""
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        return dict(zip(plugins, pool.map(_fault, plugins), strict=True))


def _fault(plugin: FoundPlugin) -> str | None:
    command = [sys.executable, "-c", _LOAD, plugin.kind, plugin.name]
    # What is importable here must be importable there.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=CHECK_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return f"error: not imported after {CHECK_LIMIT_S} s"
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"error: importing it ended with {signal.Signals(-done.returncode).name}"
    return "error: " + (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]

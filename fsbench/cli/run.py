"""`fsbench run`: trains every asked-for combination of strategies and prints the table."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tabulate import tabulate

from fsbench.cli.options import data_dir
from fsbench.errors import UserError
from fsbench.matrix import CELL_KEYS, RunSpec
from fsbench.results.manifest import make_manifest
from fsbench.results.schema import make_record
from fsbench.results.store import ResultSet, default_folder
from fsbench.results.table import render

if TYPE_CHECKING:
    from fsbench.cli.plan import Plan


def _choice(flag: str, kind: str, what: str) -> Any:
    """An option that takes one plugin and is repeated for more."""
    return click.option(flag, kind, multiple=True, metavar="NAME[:OPTIONS]", help=what)


@click.command()
@_choice("--workload", "workloads", "What to train.  [default: ml-100k]")
@_choice("--sharding", "sharding", "Which rank trains which sample.  [default: naive]")
@_choice("--embedding", "embedding", "How embedding rows move.  [default: plain]")
@_choice("--collectives", "collectives", "What moves the bytes.  [default: backend]")
@_choice("--sync", "sync", "How dense parameters are kept together.  [default: allreduce]")
@_choice("--on", "clusters", "Where the ranks live.  [default: local:ranks=2]")
@click.option("--steps", type=int, help="Steps of a run.  [default: the workload's own]")
@click.option("--repeats", type=int, help="Runs of each cell, interleaved.  [default: 1]")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="repeats, steps, seed or time_limit_s (of a run).",
)
@data_dir
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder of the result set.  [default: a new one in results/]",
)
@click.option("--resume", is_flag=True, help="Continue the result set in --out: run only what is not `ok` in it.")
@click.option("--dry-run", is_flag=True, help="Print the cells and end.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
@click.pass_context
def run(
    ctx: click.Context,
    steps: int | None,
    repeats: int | None,
    assignments: tuple[str, ...],
    data_dir: Path | None,
    out: Path | None,
    resume: bool,
    dry_run: bool,
    quiet: bool,
    **asked: tuple[str, ...],
) -> None:
    """Train every combination of the named strategies; print where each step's time went.

    An option that takes a NAME may be repeated; several values on several axes give their product. `all`
    means every installed one: see `fsbench list`.
    """
    # Here, because workloads need numpy, which `fsbench --help` can do without.
    from fsbench.cli.plan import make_plan

    if resume and out is None:
        raise UserError("--resume continues the result set in --out DIR; name it")
    flags = {"steps": steps, "repeats": repeats}
    given = [f"{key}={value}" for key, value in flags.items() if value is not None]
    plan = make_plan(asked, [*assignments, *given])
    if dry_run:
        click.echo(describe(plan))
        return
    ctx.exit(_execute(plan, data_dir, out or default_folder(), resume, quiet, ctx.obj or ()))


def describe(plan: Plan) -> str:
    """The cells of a plan, and which of its strategies call on which axes."""
    cells = [[getattr(cell, key) for key in CELL_KEYS] for cell in plan.cells]
    uses = {
        (axis, choice.spec): ", ".join(sorted(choice.instance.uses)) or "nothing"
        for axis, choices in plan.choices.items()
        if axis in CELL_KEYS
        for choice in choices
    }
    return "\n\n".join(
        (
            f"cells: {len(plan.cells)}, repeats: {plan.settings.repeats}, runs: {len(plan.runs)}",
            tabulate(cells, CELL_KEYS, tablefmt="simple", disable_numparse=True),
            tabulate([[*key, used] for key, used in uses.items()], ["axis", "strategy", "uses"], tablefmt="simple"),
        )
    )


def _execute(plan: Plan, data_dir: Path | None, folder: Path, resume: bool, quiet: bool, command: Sequence[str]) -> int:
    """Checks what is left to check, runs what is left to run, prints the table; returns the exit code."""
    _require_torch()
    from fsbench.cli.plan import prepare
    from fsbench.launch.session import run_session

    manifest = make_manifest(
        command=command,
        settings=plan.settings,
        cells=plan.cells,
        runs=plan.runs,
        plugins=[choice.plugin for choices in plan.choices.values() for choice in choices],
        data=prepare(plan, data_dir),
    )
    result_set = _open(folder, manifest, resume)
    finished = result_set.finished()
    runs = [run for run in plan.runs if run.run_id not in finished]
    runs, exit_code = _set_unsupported_aside(plan, runs, result_set)
    try:
        exit_code = max(exit_code, run_session(runs, result_set, data_dir, quiet))
    except KeyboardInterrupt:
        click.echo(f"continue with --resume --out {folder}", err=True)
        raise
    click.echo(render(result_set.records(), "table", result_set.manifest()))
    click.echo(f"\nresults: {folder}")
    return exit_code


def _require_torch() -> None:
    # Found, not imported: this process only starts others.
    if importlib.util.find_spec("torch") is None:
        raise UserError("training needs PyTorch, which is not installed; pip install 'fsbench[cpu]'")


def _open(folder: Path, manifest: Mapping[str, Any], resume: bool) -> ResultSet:
    """A new result set, or the one to resume if it was made from the same steps and the same data."""
    if not resume:
        return ResultSet.create(folder, manifest)
    before = ResultSet.open(folder).manifest()
    now = json.loads(json.dumps(manifest))
    steps, steps_before = (entry.get("settings", {}).get("steps") for entry in (now, before))
    if steps != steps_before:
        before_text, now_text = (value or "the default" for value in (steps_before, steps))
        raise UserError(f"{folder} was run with {before_text} steps, not {now_text}; its runs would not compare")
    for workload, fingerprint in now["data"].items():
        if before.get("data", {}).get(workload, fingerprint) != fingerprint:
            raise UserError(f"{folder} was run on other data of {workload}; its runs would not compare")
    return ResultSet.resume(folder, manifest)


def _set_unsupported_aside(plan: Plan, runs: Sequence[RunSpec], result_set: ResultSet) -> tuple[list[RunSpec], int]:
    """Records the runs that cannot run here; returns the others, and 1 if something named was to blame."""
    verdicts = {cell: plan.unsupported(cell) for cell in plan.cells}
    for run in runs:
        if verdict := verdicts[run.cell]:
            started = datetime.now(UTC).isoformat(timespec="seconds")
            result_set.append(
                make_record(run, kind="cpu", status="unsupported", reason=verdict[0], started=started, wall_s=0.0)
            )
    supported = [run for run in runs if verdicts[run.cell] is None]
    return supported, int(any(named for _, named in filter(None, verdicts.values())))

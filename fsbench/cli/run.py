"""`fsbench run`: trains every asked-for combination of strategies and prints the table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fsbench.cli.needs import require_torch
from fsbench.cli.options import data_dir
from fsbench.errors import UserError
from fsbench.matrix import RunSpec
from fsbench.results.manifest import make_manifest
from fsbench.results.schema import make_record
from fsbench.results.store import ResultSet, default_folder, held
from fsbench.results.table import render

if TYPE_CHECKING:
    from fsbench.cli.plan import Plan

BUILT_IN_NAME = "built-in"
"""What `--matrix` without a file stands for; a file of this name is reached as `./built-in`."""


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
@click.option(
    "--matrix",
    is_flag=False,
    flag_value=BUILT_IN_NAME,
    metavar="[FILE]",
    help="Take the axes from a TOML file, or the built-in 16 cells; other options then replace its values.",
)
@click.option("--steps", type=int, help="Steps of a run.  [default: the workload's own]")
@click.option("--repeats", type=int, help="Runs of each cell, interleaved.  [default: 1]")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help='Set repeats, steps, seed, time_limit_s, stall_limit_s (of a run), or names: sync=["NAME", "NAME"].',
)
@data_dir
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder of the result set.  [default: a new one in results/]",
)
@click.option("--resume", is_flag=True, help="Continue the result set in --out: run only what is not `ok` in it.")
@click.option("--dry-run", is_flag=True, help="Print the cells and what goes together, and end.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
@click.pass_context
def run(
    ctx: click.Context,
    matrix: str | None,
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
    from fsbench.cli.describe import describe

    if resume and out is None:
        raise UserError("--resume continues the result set in --out DIR; name it")
    settings = {"steps": steps, "repeats": repeats}
    options = {**asked, **{key: [value] for key, value in settings.items() if value is not None}}
    plan = _plan(matrix, options, assignments)
    if dry_run:
        click.echo(describe(plan))
        return
    ctx.exit(_execute(plan, data_dir, out or default_folder(), resume, quiet, ctx.obj or ()))


def _plan(matrix: str | None, options: Mapping[str, Sequence[object]], assignments: Sequence[str]) -> Plan:
    """What the command line asks for, key by key, and the matrix for all else."""
    from fsbench.cli.matrix_file import read_matrix
    from fsbench.cli.plan import make_plan
    from fsbench.cli.request import built_in, from_command_line

    asked = from_command_line(options, assignments)
    if matrix is None:
        return make_plan(asked, None)
    listed = built_in() if matrix == BUILT_IN_NAME else read_matrix(Path(matrix))
    return make_plan({**listed, **asked}, Path(matrix).name)


def _execute(plan: Plan, data_dir: Path | None, folder: Path, resume: bool, quiet: bool, command: Sequence[str]) -> int:
    """Checks what is left to check, runs what is left to run, prints the table; returns the exit code."""
    require_torch()
    from fsbench.cli.plan import prepare
    from fsbench.cli.profiles import check_profiles
    from fsbench.launch.session import run_session

    check_profiles(plan)
    manifest = make_manifest(
        command=command,
        settings=plan.settings,
        cells=plan.cells,
        runs=plan.runs,
        plugins=[choice.plugin for choices in plan.choices.values() for choice in choices],
        options=plan.options,
        data=prepare(plan, data_dir),
    )
    with _opened(folder, {**manifest, "matrix": {"name": plan.matrix, **plan.specs}}, resume) as result_set:
        finished = result_set.finished()
        runs = _set_unsupported_aside(plan, [run for run in plan.runs if run.run_id not in finished], result_set)
        try:
            run_session(runs, result_set, data_dir, quiet)
        except KeyboardInterrupt:
            click.echo(f"continue with --resume --out {folder}", err=True)
            raise
        contents = result_set.read()
    click.echo(render(contents.records, "table", contents.manifest))
    click.echo(f"\nresults: {folder}")
    return _exit_code(plan, contents.records)


@contextmanager
def _opened(folder: Path, manifest: Mapping[str, Any], resume: bool) -> Iterator[ResultSet]:
    """A new result set, or the one to resume, which no other process writes to inside the context."""
    if resume:
        ResultSet.open(folder)
    with held(folder):
        yield _resumed(folder, manifest) if resume else ResultSet.create(folder, manifest)


def _resumed(folder: Path, manifest: Mapping[str, Any]) -> ResultSet:
    """Cells may be added to a result set, but all its runs are of one kind."""
    first = ResultSet.open(folder).provenance()
    now = json.loads(json.dumps(manifest))
    for before in (first, *first.get("resumed", ())):
        if fault := _difference(before, now):
            raise UserError(f"{folder} was run {fault}; its runs would not compare")
    return ResultSet.resume(folder, manifest)


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """In what earlier runs of a set differ from those to come although they must not, or None."""
    for key, form in (("steps", "{} steps"), ("seed", "seed {}")):
        settings = {**now["settings"], **before.get("settings", {})}
        was, would_be = ("the default" if value is None else value for value in (settings[key], now["settings"][key]))
        if was != would_be:
            return f"with {form.format(was)}, not {would_be}"
    for workload, fingerprint in now["data"].items():
        if before.get("data", {}).get(workload, fingerprint) != fingerprint:
            return f"on other data of {workload}"
    return None


def _set_unsupported_aside(plan: Plan, runs: Sequence[RunSpec], result_set: ResultSet) -> list[RunSpec]:
    """Records the runs that cannot run here; returns the others."""
    obstacles = {cell: plan.obstacle(cell) for cell in plan.cells}
    for run in runs:
        if obstacle := obstacles[run.cell]:
            started = datetime.now(UTC).isoformat(timespec="seconds")
            kind = plan.chosen(run.cell)["clusters"].instance.kind
            result_set.append(
                make_record(run, kind=kind, status="unsupported", reason=str(obstacle), started=started, wall_s=0.0)
            )
    return [run for run in runs if obstacles[run.cell] is None]


def _exit_code(plan: Plan, records: Sequence[Mapping[str, Any]]) -> int:
    """0 if every run is ok, or unsupported as no more than the product of a matrix; else 1."""
    statuses = {record["run_id"]: record["status"] for record in records}
    ended = [(run, statuses.get(run.run_id)) for run in plan.runs]
    return int(not all(status == "ok" or (status == "unsupported" and not _named(plan, run)) for run, status in ended))


def _named(plan: Plan, run: RunSpec) -> bool:
    """Whether what a run lacks here was asked for by name; the ranks do not tell which of its strategies lacked it."""
    obstacle = plan.obstacle(run.cell)
    return obstacle.named if obstacle else any(choice.named for choice in plan.chosen(run.cell).values())

"""`fsbench compare`: several result sets beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from fsbench.errors import UserError
from fsbench.results.compare import Compared, compare
from fsbench.results.compare_data import comparison_csv, comparison_json
from fsbench.results.compare_table import comparison_report
from fsbench.results.printable import printable
from fsbench.results.store import ResultSet
from fsbench.results.table import FORMATS

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@click.command("compare")
@click.argument("results", nargs=-1, metavar="RESULT...", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(FORMATS), default="table", show_default=True)
@click.pass_context
def compare_sets(ctx: click.Context, results: tuple[Path, ...], form: str) -> None:
    """Hold result sets against the first of them.

    Sets of the same workload, data, model and machine compare cell by cell. Those of other machines, clusters or
    versions compare as ratios within each set; those that trained something else do not, and it says why.
    What cannot be read of a set is named, the rest is compared, and the exit code is 1.
    """
    contents = [result_set.read() for result_set in _open(results)]
    comparison = compare(
        [
            Compared(letter, printable(str(path), form), printable(one.manifest, form), printable(one.records, form))
            for letter, path, one in zip(_LETTERS, results, contents, strict=False)
        ]
    )
    writers = {"json": comparison_json, "csv": comparison_csv}
    click.echo(writers[form](comparison) if form in writers else comparison_report(comparison, form))
    ctx.exit(int(any(one.unread for one in contents)))


def _open(paths: Sequence[Path]) -> list[ResultSet]:
    """The result sets, each named once.

    Raises:
        UserError: fewer than two, more than there are letters, or one that is no result set or given twice.
    """
    if not 2 <= len(paths) <= len(_LETTERS):
        raise UserError(
            f"compare takes 2 to {len(_LETTERS)} result sets, not {len(paths)}; `fsbench show RESULT` shows one"
        )
    sets = [ResultSet.open(path) for path in paths]
    seen: dict[Path, Path] = {}
    for path, one in zip(paths, sets, strict=True):
        if (folder := one.folder.resolve()) in seen:
            raise UserError(f"{path} and {seen[folder]} are the same result set; name another to compare it with")
        seen[folder] = path
    return sets

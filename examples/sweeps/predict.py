"""Straggler and padding shares over the settings of a sweep, predicted from costs: nothing is trained or timed.

    python examples/sweeps/predict.py --out results/balancing-sweeps examples/sweeps/*.toml

A sweep is a TOML file of lists, whose product is computed; `straggler-by-cap.toml` explains each key. NAME.csv and
NAME.md are written for NAME.toml.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import click
import numpy as np
from prediction import Share, predict
from sweep import Setting, Sweep, read_sweep

import fsbench
from fsbench.errors import UserError


def write_csv(path: Path, sweep: Sweep, shares: dict[Setting, dict[str, Share]]) -> None:
    """A line for each setting and sharding; shares are fractions of 1."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["kind", "metric", *Setting._fields, "sharding", *Share._fields, "batches", "seeds"])
        seeds = " ".join(map(str, sweep.seeds))
        for setting, by_sharding in shares.items():
            for sharding, share in by_sharding.items():
                writer.writerow(["predicted", sweep.metric, *setting, sharding, *share, sweep.batches, seeds])


def markdown(sweep: Sweep, shares: dict[Setting, dict[str, Share]]) -> str:
    """The table with what it is about; keys with one value stand above it."""
    varied = [key for key in Setting._fields if len(getattr(sweep, key)) > 1]
    fixed = [f"{key} {_text(getattr(sweep, key)[0])}" for key in Setting._fields if key not in varied]
    columns = [*varied, *next(iter(shares.values()))]
    rows = [
        [*(_text(getattr(setting, key)) for key in varied), *map(str, by.values())] for setting, by in shares.items()
    ]
    seeds = f"{sweep.seeds} [least, most], {sweep.batches} global batches a seed"
    return "\n".join(
        [
            f"# {sweep.title}",
            "",
            "Predicted from costs: nothing was trained and no time measured. Lengths are synthetic.",
            "",
            f"{sweep.metric} share in %: median over seeds {seeds}; {'; '.join(fixed)}. "
            f"fsbench {fsbench.__version__}, numpy {np.__version__}.",
            "",
            *(f"| {' | '.join(row)} |" for row in [columns, ["---"] * len(columns), *rows]),
            "",
        ]
    )


def _text(value: str | int) -> str:
    return f"{value:,}" if isinstance(value, int) else f"`{value}`"


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Where tables are written."
)
def main(files: tuple[Path, ...], out: Path) -> None:
    try:
        sweeps = {path.stem: read_sweep(path) for path in files}
        out.mkdir(parents=True, exist_ok=True)
        for name, sweep in sweeps.items():
            shares = predict(sweep)
            write_csv(out / f"{name}.csv", sweep, shares)
            text = markdown(sweep, shares)
            (out / f"{name}.md").write_text(text)
            click.echo(text)
    except UserError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()

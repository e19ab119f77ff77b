"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

data_dir = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where data sets lie, or are put.  [default: $FSBENCH_DATA, or a folder in the user's cache]",
)

"""`fsbench contention`: how much slower kernels of a GPU are beside copies, by multiprocessors or by copy engines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tqdm import tqdm

from fsbench.cli.needs import require_torch
from fsbench.collect.cuda_driver import driver_version
from fsbench.errors import Unsupported, UserError
from fsbench.options import byte_size
from fsbench.results.ratios import MISSING

if TYPE_CHECKING:
    from fsbench.costs.contention import Row

SEED = 1
OUT = Path("results", "profiles", "contention.toml")


def _size(ctx: click.Context, parameter: click.Parameter, text: str) -> int:
    try:
        size = byte_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if not size or size % 4:
        raise click.BadParameter("expected a multiple of 4 bytes above 0")
    return size


@click.command()
@click.option("--repeats", type=click.IntRange(2), default=7, show_default=True, help="Pairs of timings of each row.")
@click.option("--size", default="256MiB", show_default=True, callback=_size, help="Bytes of a copy.")
@click.option(
    "--blocks",
    type=click.IntRange(1),
    multiple=True,
    default=(1, 4, 8, 16, 32),
    show_default=True,
    help="Thread blocks of a copy by multiprocessors; may be repeated.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=OUT,
    show_default=True,
    help="File of the constants, TOML.",
)
@click.option("--quiet", is_flag=True, help="No progress.")
def contention(repeats: int, size: int, blocks: Sequence[int], out: Path, quiet: bool) -> None:
    """Measure how much slower kernels are beside copies, on one GPU.

    An attention and a GEMM kernel run alone and beside copies of the same bytes: by some thread blocks, as collectives
    on multiprocessors do, and by copy engines, inside the GPU and to and from the host.
    """
    require_torch()
    machine, source = _open(size, blocks)
    rows = _measure(machine, repeats, quiet)
    from fsbench.costs.contention import write

    write(out, rows, {**source, "bytes": size, "repeats": repeats})
    click.echo(f"{describe(rows)}\n\ncontention constants: {out}")


def _open(size: int, blocks: Sequence[int]) -> tuple[Any, dict[str, Any]]:
    """The GPU, and what it is.

    Raises:
        Unsupported: there is none.
    """
    if not driver_version():
        raise Unsupported("contention is measured on a GPU; found no CUDA driver")
    import torch

    if not torch.cuda.is_available():
        raise Unsupported(f"contention is measured on a GPU; torch {torch.__version__} sees none")
    from fsbench.costs.contention_gpu import Gpu

    device = torch.device("cuda", 0)
    where = {"gpu": torch.cuda.get_device_name(device), "torch": torch.__version__, "cuda driver": driver_version()}
    try:
        return Gpu(device, size, blocks), where
    except torch.OutOfMemoryError:
        raise UserError("the GPU has no room for the kernels and the copies: give a smaller --size") from None


def _measure(machine: Any, repeats: int, quiet: bool) -> list[Row]:
    from fsbench.costs.contention_bench import measure

    with tqdm(total=None, unit="pair", disable=quiet) as bar:

        def on_pair(done: int, of: int) -> None:
            bar.total = of
            bar.update()

        return measure(machine, repeats, SEED, on_pair)


def describe(rows: Sequence[Row]) -> str:
    """As a table."""
    from tabulate import tabulate

    headers = ["kernel", "beside a copy by", "slowdown", "95 % interval", "GB/s", "runs", ""]
    return tabulate([_cells(row) for row in rows], headers, disable_numparse=True)


def _cells(row: Row) -> list[str]:
    who = f"{row.blocks} blocks" if row.copy == "blocks" else f"copy engine, {row.copy}"
    slowdown = MISSING if row.slowdown is None else f"{row.slowdown:.3f}"
    interval = MISSING if row.low is None or row.high is None else f"{row.low:.3f} to {row.high:.3f}"
    rate = MISSING if row.copied_gb_per_s is None else f"{row.copied_gb_per_s:.0f}"
    return [row.kernel, who, slowdown, interval, rate, str(row.runs), row.reason or ""]

"""Texts in rows under headings, as a table."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tabulate import tabulate

_TABULATE_FORMAT = {"table": "simple", "markdown": "github"}


def grid(body: Sequence[Sequence[str]], headings: Sequence[str], format: str, figures: Collection[str]) -> str:
    """A table.

    Args:
        headings: of several lines, which become one in markdown.
        format: `table` or `markdown`.
        figures: the headings whose columns stand to the right.
    """
    shown = [heading.replace("\n", " ") if format == "markdown" else heading for heading in headings]
    align = ["right" if heading in figures else "left" for heading in headings]
    return tabulate(body, shown, tablefmt=_TABULATE_FORMAT[format], disable_numparse=True, colalign=align)

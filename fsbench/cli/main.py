"""The `fsbench` command: finds the subcommand, and turns failures into one line and an exit code.

Exit codes: 0 all is well; 1 a run failed or fell back, or a part of a result set could not be read; 2 bad input; 130
interrupted.
"""

from __future__ import annotations

import importlib
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

import click

import fsbench
from fsbench.errors import FsbenchError
from fsbench.options import nearest
from fsbench.results.printable import one_line, visible

COMMANDS = {
    "run": "fsbench.cli.run:run",
    "list": "fsbench.cli.list_:list_plugins",
    "show": "fsbench.cli.show:show",
    "compare": "fsbench.cli.compare:compare_sets",
    "data": "fsbench.cli.data:data",
    "plugins": "fsbench.cli.plugins:plugins",
    "calibrate": "fsbench.cli.calibrate:calibrate",
    "contention": "fsbench.cli.contention:contention",
}


_LONGEST = 2000
"""Characters of a message: it may quote what a file of others holds."""


class LazyGroup(click.Group):
    """Imports a subcommand's module when that subcommand is asked for, so that each starts fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name].partition(":")
        return getattr(importlib.import_module(module), attribute)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and args[0] not in COMMANDS:
            ctx.fail(f"unknown command {args[0]!r}; {nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(fsbench.__version__, prog_name="fsbench")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Which systems strategies train your sequential recommender fastest, at equal quality, and why."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and exits. Only a bug shows a traceback."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Ended from outside, a run is cleaned up as after Ctrl-C. What is ignored stays so: `nohup` does that.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        return cli.main(given, prog_name="fsbench", standalone_mode=False, obj=given) or 0
    except FsbenchError as error:
        return _fail(str(error), error.exit_code)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except OSError as error:
        # A full disk, a closed terminal: the machine's fault, and no line of ours to look at.
        return _fail(str(error), 1)
    except (click.Abort, KeyboardInterrupt):
        click.echo("fsbench: interrupted", err=True)
        return 130


def _fail(message: str, exit_code: int) -> int:
    click.echo(f"fsbench: error: {_limited(message)}", err=True)
    return exit_code


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    click.echo(f"fsbench: warning: {_limited(str(message))}", err=True)


def _limited(text: str) -> str:
    line = visible(one_line(text))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."

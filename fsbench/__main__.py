"""The entry of the `fsbench` command and of `python -m fsbench`."""

import sys


def main() -> None:
    """Runs the command line; an interrupt while it is still being imported ends it quietly too."""
    try:
        from fsbench.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
    except SystemExit as ended:
        from fsbench.launch.endings import exit_at_once

        if ended.code is None or isinstance(ended.code, int):
            exit_at_once(ended.code or 0)
        raise


if __name__ == "__main__":
    main()

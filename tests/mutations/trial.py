"""Runs tests on a copy of the tree that has a mutation applied, or none."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutations.catalogue import ROOT, Mutation

_COOKIE = "MUTATION_TRIAL"
_PACKAGES = {"fsbench_strategies": "strategies", "fsbench_workloads": "workloads"}


@dataclass(frozen=True)
class Trial:
    """How the tests of a tree ended. `exit_code` is pytest's: 0 all passed, 1 some failed, else they did not run."""

    exit_code: int
    passed: int
    failed: int
    skipped: int
    seconds: float
    output: str

    @property
    def first_failure(self) -> str:
        """As pytest's summary has it."""
        lines = [line for line in self.output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        return lines[0].split(" ", 1)[1] if lines else ""


def run_tests(tests: Sequence[str], mutation: Mutation | None = None) -> Trial:
    """Runs pytest node IDs on a fresh copy of the repository's files, as they are in the work tree.

    Raises:
        CatalogueError: the mutation cannot be applied.
    """
    with tempfile.TemporaryDirectory(prefix="fsbench-trial-") as name, _everything_ended(name):
        folder = Path(name)
        tree = folder / "tree"
        _copy(tree)
        if mutation:
            mutation.apply(tree)
        started = time.monotonic()
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-rfEs",
            "-p",
            "no:cacheprovider",
            f"--junitxml={folder / 'report.xml'}",
        ]
        # A mutation counts as noticed at the first failure; without one, all failures are of interest.
        command += [*(["-x"] if mutation else []), *tests]
        done = subprocess.run(
            command, cwd=tree, env=_environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        counts = _counts(folder / "report.xml")
        return Trial(done.returncode, *counts, time.monotonic() - started, done.stdout)


def _copy(tree: Path) -> None:
    """The repository's files: tracked, or new and not ignored."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=True,
        text=True,
    )
    for file in filter(None, listed.stdout.split("\0")):
        if (ROOT / file).is_file():
            (tree / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, tree / file)


def _environment(folder: Path) -> dict[str, str]:
    """Imports come out of the copy, whatever is installed; what runs there can be told by the cookie."""
    packages, temporary = folder / "packages", folder / "tmp"
    packages.mkdir()
    temporary.mkdir()
    for package, place in _PACKAGES.items():
        (packages / package).symlink_to(folder / "tree" / place)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(folder / "tree"), str(packages))),
        # A mutated file may have the size and the second of the file it replaces: a cache would not see it.
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(temporary),
        _COOKIE: str(folder),
    }


@contextlib.contextmanager
def _everything_ended(cookie: str) -> Iterator[None]:
    """Kills what a mutated fsbench left running: not ending its processes may be the very mutation."""
    try:
        yield
    finally:
        mark = f"{_COOKIE}={cookie}".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)


def _counts(report: Path) -> tuple[int, int, int]:
    """Passed, failed, skipped."""
    if not report.exists():
        return 0, 0, 0
    suites = list(xml.parse(report).getroot().iter("testsuite"))
    total, failures, errors, skipped = (
        sum(int(suite.get(key, 0)) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
    )
    return total - failures - errors - skipped, failures + errors, skipped

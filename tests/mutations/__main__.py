"""`python -m tests.mutations [WORD]..`: is every handling missed by some test when it is taken away?

Each mutation of `tests/mutations/*.toml` (with WORD: those whose name or file holds one) is applied to a copy of the
tree, and its tests must fail there; without it they must pass. Exit code 1 if one survives or could not be tried.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tabulate import tabulate

from tests.mutations.catalogue import CatalogueError, Mutation, read_catalogue
from tests.mutations.trial import Trial, run_tests

NOTICED, SURVIVED, SKIPPED, BROKEN = "noticed", "SURVIVED", "skipped here", "BROKEN"


def main(words: Sequence[str]) -> int:
    try:
        mutations = [mutation for mutation in read_catalogue() if _asked(mutation, words)]
    except CatalogueError as error:
        return _fail(str(error))
    if not mutations:
        return _fail("no such mutation")
    tests = list(dict.fromkeys(test for mutation in mutations for test in mutation.tests))
    print(f"without mutation: {len(tests)} node IDs", flush=True)
    whole = run_tests(tests)
    print(f"  {whole.passed} passed, {whole.failed} failed, {whole.skipped} skipped, {whole.seconds:.0f} s", flush=True)
    if whole.exit_code:
        print(whole.output)
        return _fail("the tests do not pass without a mutation")
    rows = [_try(mutation) for mutation in mutations]
    print(tabulate(rows, headers=["mutation", "verdict", "s", "first failure"], maxcolwidths=[60, None, None, 70]))
    return int(any(row[1] in (SURVIVED, BROKEN) for row in rows))


def _asked(mutation: Mutation, words: Sequence[str]) -> bool:
    return not words or any(word in mutation.name or word in mutation.source for word in words)


def _try(mutation: Mutation) -> list[str]:
    try:
        trial = run_tests(mutation.tests, mutation)
    except CatalogueError as error:
        return [mutation.name, BROKEN, "", str(error)]
    row = [mutation.name, verdict(trial), f"{trial.seconds:.0f}", trial.first_failure]
    print(f"  {mutation.name}: {row[1]}", flush=True)
    if row[1] == BROKEN:
        print(trial.output)
    return row


def verdict(trial: Trial) -> str:
    """Tests that do not even import tell nothing of the handling: only a failed test notices."""
    if trial.exit_code == 1 and trial.failed:
        return NOTICED
    if trial.exit_code == 0:
        return SURVIVED if trial.passed else SKIPPED
    return BROKEN


def _fail(message: str) -> int:
    print(f"mutations: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Mutations as data: `tests/mutations/*.toml`.

[[mutation]]
name = "a rank's SIGTERM is not told apart"     # a sentence: what is taken away
file = "fsbench/launch/verdict.py"              # from the root of the repository
find = "text that occurs once in the file"
replace = "what stands there instead"
tests = ["tests/test_x.py::test_y"]             # pytest node IDs, at least one of which must fail then
"""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent


class CatalogueError(Exception):
    """A mutation that cannot be applied; the message says which, and why."""


@dataclass(frozen=True)
class Mutation:
    """One handling taken away, and the tests that must notice. `source`: the file that lists it, for messages."""

    name: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]
    source: str

    def apply(self, tree: Path) -> None:
        """Changes the file under `tree`.

        Raises:
            CatalogueError: the text is not there, or more than once.
        """
        path = tree / self.file
        text = path.read_text() if path.is_file() else ""
        if (found := text.count(self.find)) != 1:
            raise CatalogueError(f"{self.source}: {self.name}: {self.file} has the text {found} times, expected once")
        path.write_text(text.replace(self.find, self.replace))


def read_catalogue(folder: Path = FOLDER) -> list[Mutation]:
    """All mutations, by file name, then in the order of the file.

    Raises:
        CatalogueError: a file that is no TOML or an entry that is not made of the five keys.
    """
    mutations = [mutation for path in sorted(folder.glob("*.toml")) for mutation in _read(path)]
    names = [mutation.name for mutation in mutations]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise CatalogueError(f"two mutations are called {twice!r}")
    return mutations


def _read(path: Path) -> list[Mutation]:
    try:
        entries = tomllib.loads(path.read_text())["mutation"]
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise CatalogueError(f"{path.name}: expected [[mutation]] tables: {error!r}") from None
    return [_mutation(path, entry) for entry in entries]


def _mutation(path: Path, entry: dict) -> Mutation:
    expected = {field.name for field in dataclasses.fields(Mutation)} - {"source"}
    if entry.keys() != expected or not entry["tests"] or entry["find"] == entry["replace"]:
        raise CatalogueError(
            f"{path.name}: {entry.get('name', 'an entry without name')}: expected {', '.join(sorted(expected))}, "
            "some tests, and a change"
        )
    return Mutation(**{**entry, "tests": tuple(entry["tests"])}, source=path.name)

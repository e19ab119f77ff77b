"""The contract of a cluster: where the ranks of a run live."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class Cluster(ABC):
    """A place for ranks. The first line of the class's docstring is its summary in `list`."""

    @dataclass(frozen=True)
    class Options:
        """A frozen dataclass: the options a user may set, with their defaults. Override it."""

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options

    @property
    @abstractmethod
    def ranks(self) -> int:
        """How many ranks a run has."""

    @abstractmethod
    def describe(self) -> str:
        """One line for people."""

    def requirements(self) -> str | None:
        """Why it cannot be used on this machine, or None."""
        return None

    @abstractmethod
    def command(self, spec_file: Path) -> Sequence[str]:
        """The command that starts all ranks of a run, each as `python -m fsbench.train.rank SPEC_FILE`."""

    def environment(self) -> Mapping[str, str]:
        """Variables added to the environment of the ranks."""
        return {}

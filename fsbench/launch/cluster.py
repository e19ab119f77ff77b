"""The contract of a cluster: where the ranks of a run live.

For each run a session calls, in this order, `requirements`, `simulate`, `open`, and inside it `command` and
`environment`.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fsbench.options import BitRate

if TYPE_CHECKING:
    from fsbench.launch.handover import Order


@dataclass(frozen=True)
class Link:
    """What carries the bytes between hosts: the interface that every host has, its rate, and the ranks behind it."""

    interface: str
    bits_per_s: BitRate
    ranks_a_host: int


class Cluster(ABC):
    """A place for ranks. The first line of the class's docstring is its summary in `list`.

    `servers`, below: how many server processes a run has beside its ranks (see `Strategy.roles`).
    """

    kind: ClassVar[str] = "cpu"
    """What a run that did not get as far as to look at its device is recorded as."""
    serves: ClassVar[bool] = False
    """Whether it can start server processes. If not, `servers` is always 0."""

    @dataclass(frozen=True)
    class Options:
        """A frozen dataclass: the options a user may set, with their defaults. Override it."""

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options

    @property
    @abstractmethod
    def ranks(self) -> int:
        """How many ranks a run has."""

    @property
    def link(self) -> Link | None:
        """The interface through which hosts reach each other, where its counters can tell what was sent."""
        return None

    @property
    def most_processes(self) -> int | None:
        """The most ranks and servers together that a run may have here, if there is a limit."""
        return None

    @abstractmethod
    def describe(self) -> str:
        """One line for people."""

    def requirements(self) -> str | None:
        """Why it cannot be used on this machine, or None."""
        return None

    def open(self, servers: int) -> AbstractContextManager[None]:
        """What a run needs around it. Entered before its processes start and left when all of them are gone, however
        they ended, a Ctrl-C included; entering it also removes what a killed fsbench could not."""
        return contextlib.nullcontext()

    def simulate(self, order: Order, on_step: Callable[[], None]) -> dict[str, Any] | None:
        """What comes of a run for which nothing is started: the keyword arguments of `make_record` that it determines,
        `kind` among them. None, and the run is one of processes. `on_step`: to be called now and then; it raises
        KeyboardInterrupt where the user wants to stop.

        Raises:
            Unsupported: the cell cannot be simulated; why.
        """
        return None

    @abstractmethod
    def command(self, spec_file: Path, servers: int) -> Sequence[str]:
        """The command that starts all processes of a run, each as `python -m fsbench.train.rank SPEC_FILE` with `RANK`
        in its environment: those of the ranks, then those of the servers."""

    def environment(self) -> Mapping[str, str]:
        """Variables added to the environment of the ranks."""
        return {}

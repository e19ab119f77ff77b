"""A hardware profile: the constants of a machine and where each of them comes from, in a TOML file.

Every constant is a table of two, `{ value = 25e9, source = "..." }`. Those that come with fsbench lie in `profiles/`;
any other is named by its path.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fsbench.errors import DataError, UserError
from fsbench.options import nearest
from fsbench.sim.contract import WorkCosts
from fsbench.sim.machine import Machine, Rate
from fsbench.sim.topology import BETWEEN_HOSTS, LINKS, Link, Topology

FOLDER = Path(__file__).parent / "profiles"
DEVICES = ("cpu", "gpu")

ABOVE_ZERO = {
    "ranks_a_host": "ranks on a host",
    **{f"links.{link}.bytes_per_s": "rate of a rank's link, in either direction" for link in LINKS},
    "compute.flops_per_s": "of the model's operations, sustained by one rank",
    "compute.dense_byte_ns": "dense optimizer, a byte of parameters",
    "work.id_ns": "de-duplicating and routing an ID",
    "work.row_byte_ns": "reading, packing, spreading or updating a byte of rows",
    "work.sample_ns": "loading a sample, and assigning one of the global batch to a rank",
    "work.call_ns": "a piece of a strategy's work, however small",
    "work.host_byte_ns": "the CPU's part in moving a byte of what hosts drive",
}
"""Constants that are more than 0, and what they are. Strategy work is never free."""
FROM_ZERO = {
    **{f"links.{link}.latency_ns": "of a hop" for link in LINKS},
    "compute.step_ns": "of a rank-batch, whatever is in it",
    "contention.sm": "by how much compute takes longer beside a collective on multiprocessors",
    "contention.host": "the same beside one that the host drives",
    "noise.jitter": "standard deviation of the logarithm of a piece of work's time",
}
"""Constants that may be 0."""
CONSTANTS = {**ABOVE_ZERO, **FROM_ZERO}
_TOP = ("device", "about", "speeds")


@dataclass(frozen=True)
class Profile:
    """`values`, `sources`: by dotted key of `CONSTANTS`. `speeds`: of the hosts in turn, beside the constants."""

    path: Path
    device: Literal["cpu", "gpu"]
    values: Mapping[str, float]
    sources: Mapping[str, str]
    speeds: tuple[float, ...] = (1.0,)

    def machine(self, ranks: int, *, seed: int = 0, bytes_per_s: float | None = None) -> Machine:
        """So many ranks of it. `bytes_per_s`: another rate between hosts than the profile's, one rank on each.

        Raises:
            UserError: the ranks fill no whole number of hosts.
        """
        ranks_a_host = int(self["ranks_a_host"]) if bytes_per_s is None else 1
        if ranks % ranks_a_host:
            raise UserError(f"{self.path}: ranks_a_host is {ranks_a_host}, of which {ranks} ranks are no multiple")
        hosts = ranks // ranks_a_host
        speeds = np.repeat(np.resize(self.speeds, hosts), ranks_a_host)
        links: dict[Link, Rate] = {
            link: Rate(self[f"links.{link}.bytes_per_s"], int(self[f"links.{link}.latency_ns"])) for link in LINKS
        }
        if bytes_per_s is not None:
            links |= {link: Rate(bytes_per_s, links[link].latency_ns) for link in BETWEEN_HOSTS}
        return Machine(
            Topology(ranks, ranks_a_host),
            links,
            {"sm": self["contention.sm"], "host": self["contention.host"]},
            None if (speeds == 1).all() else speeds,
            self["noise.jitter"],
            seed,
        )

    @property
    def work(self) -> WorkCosts:
        return WorkCosts(**{key.partition(".")[2]: self[key] for key in CONSTANTS if key.startswith("work.")})

    def __getitem__(self, key: str) -> float:
        return self.values[key]


def names() -> list[str]:
    """Of the profiles that come with fsbench."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_profile(name: str) -> Profile:
    """The profile of that name, or that file.

    Raises:
        UserError: no such profile.
        DataError: it cannot be read; or the file and the key of a constant that is missing, unknown or out of range.
    """
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"unknown profile {name!r}; {nearest(name, names())}, or a path to FILE.toml") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    return _profile(path, content)


def _profile(path: Path, content: Mapping[str, Any]) -> Profile:
    if content.get("device") not in DEVICES:
        raise DataError(f"{path}: device is {content.get('device')!r}, expected {' or '.join(DEVICES)}")
    constants = dict(_constants(path, {key: value for key, value in content.items() if key not in _TOP}))
    if absent := [key for key in CONSTANTS if key not in constants]:
        raise DataError(f"{path}: {absent[0]} is missing: {CONSTANTS[absent[0]]}")
    values = {key: _value(path, key, constant) for key, constant in constants.items()}
    sources = {key: constant["source"] for key, constant in constants.items()}
    return Profile(path, content["device"], values, sources, _speeds(path, content.get("speeds", [1.0])))


def _constants(path: Path, content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Dotted keys and their tables."""
    for name, value in content.items():
        key = f"{prefix}{name}"
        if key in CONSTANTS:
            if not (isinstance(value, dict) and set(value) == {"value", "source"}):
                raise DataError(f'{path}: {key} is {value!r}, expected {{ value = NUMBER, source = "WHERE FROM" }}')
            yield key, value
        elif isinstance(value, dict) and any(known.startswith(f"{key}.") for known in CONSTANTS):
            yield from _constants(path, value, f"{key}.")
        else:
            raise DataError(f"{path}: unknown key {key}; {nearest(key, [*CONSTANTS, *_TOP])}")


def _value(path: Path, key: str, constant: Mapping[str, Any]) -> float:
    value, source = constant["value"], constant["source"]
    if not _is_number(value):
        raise DataError(f"{path}: {key} is {value!r}, expected a number")
    if key in ABOVE_ZERO and value <= 0:
        raise DataError(f"{path}: {key} is {value}, expected more than 0")
    if value < 0:
        raise DataError(f"{path}: {key} is {value}, expected 0 or more")
    if key == "ranks_a_host" and value != int(value):
        raise DataError(f"{path}: {key} is {value}, expected a whole number")
    if not (isinstance(source, str) and source.strip()):
        raise DataError(f"{path}: {key} has no source")
    return value


def _speeds(path: Path, speeds: Any) -> tuple[float, ...]:
    if not (isinstance(speeds, list) and speeds and all(_is_number(speed) and speed > 0 for speed in speeds)):
        raise DataError(f"{path}: speeds is {speeds!r}, expected a list of numbers above 0, one a host, in turn")
    return tuple(map(float, speeds))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)

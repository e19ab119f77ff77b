"""A cost profile on disk: what `fsbench calibrate` measured of a workload on a machine.

One JSON object. Coefficients belong to a workload with its options: for any other they would be wrong without a sign of
it, so that they are refused. They belong to a machine too, but what is used is their ratios, which carry over to a
like machine well enough: there is a warning, and the record says so.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsbench.costs.features import BATCH
from fsbench.errors import DataError, UserError

FORMAT = 1
FOLDER = Path("results", "profiles")
"""Beside the result sets of the folder that fsbench is run in."""


@dataclass(frozen=True)
class Profile:
    """`workload`: `name`, `class` and resolved `options`. `machine`: `device`, `model`, `threads` and `torch`.

    `coefficients_s`: seconds by feature, all >= 0: `batch` is for a rank-batch, `sample` for each of its samples, the
    others for a unit of what they name. `error`: `median` and `p95` of the relative error on held-out rank-batches.
    `measured`: how it came about, for people.
    """

    workload: Mapping[str, Any]
    machine: Mapping[str, Any]
    coefficients_s: Mapping[str, float]
    error: Mapping[str, float]
    measured: Mapping[str, Any]

    def write(self, path: Path) -> None:
        """Writes atomically.

        Raises:
            UserError: it cannot be written.
        """
        text = json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, allow_nan=False, indent=2) + "\n"
        with _writing(path) as aside:
            aside.write_text(text, encoding="utf-8")
            aside.replace(path)

    @classmethod
    def read(cls, path: Path) -> Profile:
        """Raises:
        DataError: no file, or no profile that this version reads.
        """
        try:
            content = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise DataError(f"{path}: no such profile; `fsbench calibrate` makes one") from None
        except OSError as error:
            raise DataError(f"{path}: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: no JSON: {error}") from None
        if fault := _fault(content):
            raise DataError(f"{path}: {fault}; calibrate again")
        return cls(**{field.name: content[field.name] for field in dataclasses.fields(cls)})

    @classmethod
    def of(cls, workload: Any, asked: str | None) -> Profile:
        """The profile of a workload, from its `profile_path`.

        Raises:
            DataError: there is none, or it is damaged.
            UserError: it is that of another workload, or of other options.
        """
        path = profile_path(workload, asked)
        profile = cls.read(path)
        if fault := profile._stranger_to(workload):
            raise UserError(f"{path} is the profile of {fault}; calibrate that workload, or leave profile= out")
        return profile

    def elsewhere(self, here: Mapping[str, Any]) -> list[str]:
        """`model: A, here B`: in what the machine it was made on differs from this one, as far as that is known."""
        return [
            f"{part}: {self.machine[part]}, here {value}"
            for part, value in here.items()
            if part in self.machine and self.machine[part] != value
        ]

    def _stranger_to(self, workload: Any) -> str | None:
        mine, its = self.workload, identity(workload)
        if mine["class"] != its["class"]:
            return f"{mine['class']}, not of {its['class']}"
        names = dict.fromkeys((*mine["options"], *its["options"]))
        missing = object()
        for name in names:
            there, here = (options.get(name, missing) for options in (mine["options"], its["options"]))
            if there != here:
                there, here = ("no such option" if value is missing else value for value in (there, here))
                return f"{mine['name']} with {name}={there}, not {name}={here}"
        return None


def identity(workload: Any) -> dict[str, Any]:
    """What a workload is, whatever it is called: its class and its options as JSON has them."""
    kind = type(workload)
    options = json.loads(json.dumps(dataclasses.asdict(workload.options), default=str))
    return {"class": f"{kind.__module__}:{kind.__qualname__}", "options": options}


def profile_path(workload: Any, asked: str | None = None) -> Path:
    """The path asked for, or where `calibrate` puts the profile of a workload with these options."""
    if asked is not None:
        return Path(asked)
    key = json.dumps(identity(workload), sort_keys=True)
    return FOLDER / f"{type(workload).__name__}-{hashlib.sha256(key.encode()).hexdigest()[:8]}.json"


def make_room(path: Path) -> None:
    """Finds out whether a profile could be written, before it is measured.

    Raises:
        UserError: it could not.
    """
    with _writing(path) as aside:
        aside.touch()
        aside.unlink()


@contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """A file beside `path`, to be written and then moved there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield path.with_name(path.name + ".new")
    except OSError as error:
        raise UserError(f"cannot write the profile to {path}: {error.strerror or error}") from None


def _fault(content: Any) -> str | None:
    """Why something read from a file is no profile that this version understands, or None."""
    if not isinstance(content, dict):
        return "expected an object"
    if content.get("format") != FORMAT:
        return f"format {content.get('format')!r}; this version of fsbench reads {FORMAT}"
    for field in dataclasses.fields(Profile):
        if not isinstance(content.get(field.name), dict):
            return f"{field.name!r} is missing or no object"
    workload = content["workload"]
    if not (isinstance(workload.get("name"), str) and isinstance(workload.get("class"), str)):
        return "'workload' needs a name and a class"
    if not isinstance(workload.get("options"), dict):
        return "'workload' needs options"
    return _number_fault(content)


def _number_fault(content: Mapping[str, Any]) -> str | None:
    for name in ("coefficients_s", "error"):
        for key, value in content[name].items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                return f"{name}: {key} is {value!r}, expected a number of 0 or more"
    coefficients = content["coefficients_s"]
    if BATCH not in coefficients:
        return f"coefficients_s: there is none for {BATCH!r}"
    if not any(value for name, value in coefficients.items() if name != BATCH):
        return "coefficients_s: samples cost nothing"
    if missing := [key for key in ("median", "p95") if key not in content["error"]]:
        return f"error: {' and '.join(missing)} missing"
    return None

"""What may be compared with what: a key of named parts, read from the manifest of a result set.

Figures of the same workload, data and model on the same machine compare directly. Elsewhere only ratios formed within
each place do. What trained something else does not compare at all. A part that a manifest does not record, or that
changed while the set was made, equals nothing: nobody can tell.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from fsbench.options import Spec

Parts = Mapping[str, tuple[str, ...]]
"""Values by part, as texts: none where it is not recorded, several where a set was resumed elsewhere."""
NOT_RECORDED = "not recorded"
_ABSENT = {"batch": "the default", "precision": "the default", "option": "the default", "environment": "unset"}
"""What it means that a part is not there, by the first word of its name."""
_OPTION_NAMES = {"batch": "batch", "dtype": "precision"}
_VERSIONS = ("fsbench", "torch", "python")
_HASH = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{20,}\b")


class Level(IntEnum):
    """How two sets of runs compare."""

    DIRECTLY = 0
    AS_RATIOS = 1
    NOT_AT_ALL = 2


@dataclass(frozen=True)
class Key:
    """`trained`: what was trained. `place`: where, how long, and by which software."""

    trained: Parts
    place: Parts


@dataclass(frozen=True)
class Difference:
    """A part of the key in which two sets differ, and both values."""

    part: str
    first: str
    second: str
    level: Level

    def told(self, first: str, second: str) -> str:
        """`steps: 100 in A, 200 in B`, of sets named `first` and `second`; hashes by their first digits."""
        return _HASH.sub(r"\1", f"{self.part}: {self.first} in {first}, {self.second} in {second}")


def key_of(manifest: Mapping[str, Any], workload: str, cluster: str, kind: str) -> Key:
    """The key of a set's runs of a workload on a cluster and kind of machine."""
    manifests = [manifest, *manifest.get("resumed", [])]
    data = [_data(_object(entry, "data").get(workload)) for entry in manifests]
    return Key(
        trained={**_union([_model(entry, workload) for entry in manifests]), **_union(data)},
        place={"kind": (kind,), "cluster": (cluster,), **_union([_place(entry, kind) for entry in manifests])},
    )


def differences(first: Key, second: Key) -> list[Difference]:
    """The parts that differ, those that decide most first."""
    return [
        *_differing(first.trained, second.trained, Level.NOT_AT_ALL),
        *_differing(first.place, second.place, Level.AS_RATIOS),
    ]


def changes(key: Key) -> list[str]:
    """`cpu model: A then B`: what was not the same throughout a set, because it was resumed elsewhere.

    Without the seeds: a pair is of one seed.
    """
    return [f"{part}: {_shown(values)}" for part, values in key.place.items() if len(values) > 1 and part != "seeds"]


def level(found: Iterable[Difference]) -> Level:
    return max((difference.level for difference in found), default=Level.DIRECTLY)


def _model(manifest: Mapping[str, Any], workload: str) -> dict[str, str | None]:
    """Every option with its value; of a manifest that lacks them, those that were given."""
    spec = Spec.parse(workload)
    options = _object(_object(_object(manifest, "options"), "workloads"), workload) or spec.options
    named = {_OPTION_NAMES.get(name, f"option {name}"): _text(value) or "none" for name, value in options.items()}
    return {"workload": spec.name, **named}


def _data(fingerprint: Any) -> dict[str, str | None]:
    if not fingerprint:
        return {"data": None}
    return {"data": "recorded", **{f"data {name}": value for name, value in _flat(fingerprint)}}


def _place(manifest: Mapping[str, Any], kind: str) -> dict[str, str | None]:
    """A simulated machine is told by its cluster, whatever machine the simulator ran on."""
    settings, versions = _object(manifest, "settings"), _object(manifest, "versions")
    return {
        "steps": _text(settings["steps"] or "the workload's default") if "steps" in settings else None,
        # Settings without it are of a version that knew one worker only.
        "workers": _text(settings.get("workers", 1)) if settings else None,
        "seeds": _text(manifest.get("seeds")),
        **{f"version {name}": None for name in _VERSIONS},
        **{f"version {name}": _text(version or "none") for name, version in versions.items()},
        **({} if kind == "sim" else _machine(manifest)),
        **({"gpus": _gpus(manifest.get("gpus"))} if kind == "gpu" else {}),
        **{f"plugin {plugin['kind']} {plugin['name']}": _origin(plugin) for plugin in manifest.get("plugins", [])},
    }


def _machine(manifest: Mapping[str, Any]) -> dict[str, str | None]:
    """Memory to the GiB: what a kernel keeps for itself differs by a few MiB from boot to boot."""
    cpu = _object(manifest, "cpu")
    memory = cpu.get("memory_mib")
    later = {name: _text(manifest[name]) for name in ("nccl", "topology") if manifest.get(name) is not None}
    return {
        "cpu model": _text(cpu.get("model")),
        "cpu cores": _text(cpu.get("cores")),
        "memory": memory and f"{round(memory / 1024)} GiB",
        **{f"environment {name}": value for name, value in _object(manifest, "environment").items()},
        **later,
    }


def _gpus(gpus: Any) -> str | None:
    if not isinstance(gpus, list):
        return None
    alike = Counter(f"{gpu.get('name')} {gpu.get('memory_mib')} MiB, driver {gpu.get('driver')}" for gpu in gpus)
    return " + ".join(f"{number} x {gpu}" for gpu, number in alike.items())


def _origin(plugin: Mapping[str, str]) -> str:
    return f"{plugin['distribution']} {plugin['version']}"


def _union(entries: Sequence[Mapping[str, str | None]]) -> dict[str, tuple[str, ...]]:
    names = dict.fromkeys(name for entry in entries for name in entry)
    found = {name: [entry.get(name, _absent(name)) for entry in entries] for name in names}
    return {name: tuple(dict.fromkeys(value for value in values if value)) for name, values in found.items()}


def _differing(first: Parts, second: Parts, level: Level) -> list[Difference]:
    both = [(part, _values(first, part), _values(second, part)) for part in dict.fromkeys([*first, *second])]
    return [
        Difference(part, _shown(mine), _shown(other), level)
        for part, mine, other in both
        if not (mine == other and len(mine) == 1) and not _does_not_apply(part, first, second)
    ]


def _does_not_apply(part: str, first: Parts, second: Parts) -> bool:
    """A part that one of the two has, because the other uses no such strategy or is another kind of machine."""
    one_has = (part in first) != (part in second)
    return one_has and (part.startswith("plugin ") or first.get("kind") != second.get("kind"))


def _values(parts: Parts, part: str) -> tuple[str, ...]:
    absent = _absent(part)
    return parts.get(part, (absent,) if absent else ())


def _absent(part: str) -> str | None:
    return _ABSENT.get(part.partition(" ")[0])


def _shown(values: tuple[str, ...]) -> str:
    return " then ".join(values) or NOT_RECORDED


def _object(manifest: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = manifest.get(name)
    return value if isinstance(value, Mapping) else {}


def _flat(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    """An object of objects as pairs of a dotted name and a text."""
    if not isinstance(value, Mapping):
        return [(prefix, _text(value) or "none")]
    return [pair for name, item in value.items() for pair in _flat(item, f"{prefix}.{name}" if prefix else str(name))]


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True)

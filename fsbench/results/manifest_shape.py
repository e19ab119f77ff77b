"""What the parts of a manifest must look like for reports to read them; what does not is left out, and named.

Parts that are not listed here are passed on: reports take them as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fsbench.results.record_shape import cell_fault, is_number, schema_fault

SCHEMA = 1
"""Of the manifest."""

Check = Callable[[Any], bool]


def sound_manifest(manifest: Any) -> tuple[dict[str, Any], list[str]]:
    """The parts that are as they should be, and the faults of the others."""
    if not isinstance(manifest, Mapping):
        return {}, ["expected an object"]
    if fault := schema_fault(manifest.get("schema", SCHEMA), SCHEMA):
        return {}, [fault]
    wrong = [name for name, value in manifest.items() if name in _PARTS and not _PARTS[name](value)]
    faults = [f"{name!r} is not what it should be" for name in wrong]
    sound = {name: value for name, value in manifest.items() if name not in wrong}
    if "resumed" in sound:
        earlier = [sound_manifest(entry) for entry in sound["resumed"]]
        sound["resumed"] = [entry for entry, _ in earlier]
        faults += [f"resumed {number}: {fault}" for number, (_, of) in enumerate(earlier, 1) for fault in of]
    return sound, faults


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _object_of(check: Check, *keys: str) -> Check:
    """An object whose values pass, and that has these keys."""
    return lambda value: (
        isinstance(value, Mapping) and all(map(check, value.values())) and all(key in value for key in keys)
    )


def _or_null(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _anything(value: Any) -> bool:
    return True


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _cpu(value: Any) -> bool:
    return isinstance(value, Mapping) and _or_null(is_number)(value.get("memory_mib"))


def _git(value: Any) -> bool:
    return isinstance(value, Mapping) and _or_null(_text)(value.get("commit"))


_PARTS: Mapping[str, Check] = {
    "started": _text,
    "plugins": _list_of(_object_of(_text, "kind", "name", "distribution", "version")),
    "git": _or_null(_git),
    "cpu": _or_null(_cpu),
    "gpus": _or_null(_list_of(_object_of(_anything))),
    "settings": _object_of(_anything),
    "versions": _object_of(_or_null(_text)),
    "cells": _list_of(lambda value: cell_fault(value) is None),
    "runs": _list_of(_text),
    "environment": _object_of(_text),
    "data": _object_of(_anything),
    "resumed": _list_of(lambda value: isinstance(value, Mapping)),
}

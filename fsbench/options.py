"""`name:key=value,key=value`: how strategies, workloads and clusters are named and their options typed.

A plugin declares its options as a frozen dataclass; `build_options` fills it from text. Unknown keys and
values of the wrong type are `UserError`s that name what would be right.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NewType, TypeVar

from fsbench.errors import UserError

ByteSize = NewType("ByteSize", int)
"""A number of bytes, written `4096`, `64KiB`, `1MiB` or `2GiB`."""

BitRate = NewType("BitRate", int)
"""Bits a second, written `400mbit`, `2.5gbit`; powers of 1000, as `tc` has them."""

T = TypeVar("T")
_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_RATE_UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_SPEC_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")
_LONGEST_SPEC = 1000
"""Characters. Specs stand in tables and messages, and may come out of files of others."""


@dataclass(frozen=True)
class Spec:
    """A name and its options as text, exactly as the user gave them."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Reads `name` or `name:key=value,...`, or `name:value,key=value,...`: the first value is of the option that
        the plugin asks for first, and stands under no key.

        Raises:
            UserError: an empty name, an option without `=`, an option given twice, a text that is too long or has a
                character that cannot be printed.
        """
        if len(text) > _LONGEST_SPEC:
            raise UserError(f"{text[:40]!r}... has {len(text)} characters, expected at most {_LONGEST_SPEC}")
        if not text.isprintable():
            raise UserError(f"{text!r} has characters that cannot be printed")
        name, colon, tail = text.partition(":")
        if not is_name(name):
            raise UserError(f"{text!r} is not NAME or NAME:KEY=VALUE,...")
        options: dict[str, str] = {}
        parts = tail.split(",") if colon else []
        if len(parts) > 1 and parts[0] and "=" not in parts[0]:
            options[""] = parts.pop(0)
        for part in parts:
            key, equals, value = part.partition("=")
            if not key or not equals:
                raise UserError(f"{text!r}: {part!r} is not KEY=VALUE")
            if key in options:
                raise UserError(f"{text!r}: option {key!r} is given twice")
            options[key] = value
        return cls(name, options)

    def __str__(self) -> str:
        if not self.options:
            return self.name
        pairs = sorted(self.options.items())
        return self.name + ":" + ",".join(f"{key}={value}" if key else value for key, value in pairs)


def is_name(text: str) -> bool:
    """Whether a plugin of that name can be asked for."""
    return bool(_SPEC_NAME.match(text))


def nearest(name: str, known: Iterable[str]) -> str:
    """What to print after an unknown name: the closest known ones first, then all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return f"{hint}valid: {', '.join(names) or 'none'}"


def build_options(options_type: type[T], given: Mapping[str, str], *, owner: str) -> T:
    """Fills the dataclass `options_type` from text.

    Args:
        options_type: a dataclass whose fields are bool, int, float, str, `ByteSize`, `BitRate`, a `Literal` of
            strings, or one of these `| None`.
        given: the texts by option name.
        owner: who the options belong to, for messages: `sharding cost-aware`.

    Raises:
        UserError: an unknown option, a required one left out, a value of the wrong type, or a value the
            dataclass itself refuses (a `ValueError` out of its `__post_init__`).
    """
    hints = typing.get_type_hints(options_type)
    fields = [f for f in dataclasses.fields(options_type) if f.init]  # type: ignore[arg-type]
    known = [f.name for f in fields]
    values = {}
    texts = dict(given)
    if (unnamed := texts.pop("", None)) is not None:
        if not fields or not _required(fields[0]) or known[0] in texts:
            raise UserError(f"{owner}: {unnamed!r} is not KEY=VALUE")
        texts[known[0]] = unnamed
    for key, text in texts.items():
        if key not in known:
            raise UserError(f"{owner} has no option {key!r}; {nearest(key, known)}")
        try:
            values[key] = _convert(text, hints[key])
        except ValueError as error:
            raise UserError(f"{owner}: option {key}={text}: {error}") from None
    if absent := [f.name for f in fields if _required(f) and f.name not in values]:
        raise UserError(f"{owner} needs {' and '.join(f'{name}=...' for name in absent)}")
    try:
        return options_type(**values)
    except ValueError as error:
        raise UserError(f"{owner}: {error}") from None


def type_fault(options_type: type) -> str | None:
    """Why `build_options` could not fill the dataclass, or None: an option that text cannot be turned into."""
    try:
        hints = typing.get_type_hints(options_type)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    fields = [f.name for f in dataclasses.fields(options_type) if f.init]
    wrong = next((name for name in fields if not _typed(hints[name])), None)
    return f"{wrong} is of type {hints[wrong]}" if wrong else None


def _typed(kind: Any) -> bool:
    if _is_union(kind):
        inner = [arg for arg in typing.get_args(kind) if arg is not type(None)]
        return len(inner) == 1 and _typed(inner[0])
    if typing.get_origin(kind) is Literal:
        return all(isinstance(choice, str) for choice in typing.get_args(kind))
    return kind in _CONVERTED


def _is_union(kind: Any) -> bool:
    return isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union


def _required(option: dataclasses.Field) -> bool:
    return option.default is dataclasses.MISSING and option.default_factory is dataclasses.MISSING


def _convert(text: str, kind: Any) -> Any:
    if _is_union(kind):
        inner = [arg for arg in typing.get_args(kind) if arg is not type(None)]
        return None if text.lower() == "none" else _convert(text, inner[0])
    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        if text not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return text
    if kind not in _CONVERTED:
        raise TypeError(f"options cannot be of type {kind}")
    return _CONVERTED[kind](text)


def _boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false", "yes", "no", "1", "0"):
        raise ValueError("expected true or false")
    return lowered in ("true", "yes", "1")


def _number(text: str, kind: type, expected: str) -> Any:
    try:
        value = kind(text)
    except ValueError:
        raise ValueError(f"expected {expected}") from None
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError("expected a finite number")
    return value


def _byte_size(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", text)
    if not match or match[2].lower() not in _UNITS:
        raise ValueError("expected a size such as 4096, 64KiB or 1MiB")
    return int(match[1]) * _UNITS[match[2].lower()]


def _bit_rate(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]+)", text.lower())
    if not match or match[2] not in _RATE_UNITS:
        raise ValueError("expected a rate such as 400mbit or 2.5gbit")
    return round(float(match[1]) * _RATE_UNITS[match[2]])


_CONVERTED: dict[Any, Callable[[str], Any]] = {
    ByteSize: _byte_size,
    BitRate: _bit_rate,
    bool: _boolean,
    int: partial(_number, kind=int, expected="a whole number"),
    float: partial(_number, kind=float, expected="a number"),
    str: str,
}


def rate_text(bits_per_s: int) -> str:
    """A rate as a user would write it: `400mbit`, `2.5gbit`."""
    unit = next((unit for unit in reversed(_RATE_UNITS) if _RATE_UNITS[unit] <= bits_per_s), "bit")
    return f"{bits_per_s / _RATE_UNITS[unit]:g}{unit}"

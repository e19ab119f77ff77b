"""A partitioner of a public suite as its users run it: verl's, which balances the sequences of a batch over ranks.

`make bench` puts its wheel into the environment, beside its packages and without what it depends on (ray, transformers
and more): the one file that partitions is loaded alone, and what else it imports is left out. Nothing of it is part of
fsbench.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

FOLDER = Path(sys.prefix) / "public"
VERSION = "verl 0.9.1"
_FILE = FOLDER / "verl" / "utils" / "seqlen_balancing.py"
_LEFT_OUT = {
    "verl": (),
    "verl.protocol": ("DataProto",),
    "verl.utils": ("tensordict_utils",),
    "verl.utils.tensordict_utils": (),
    "verl.utils.device": ("get_device_name",),
}


def karmarkar_karp() -> Callable[[list[float], int], list[list[int]]] | None:
    """From costs and the number of ranks to the samples of each rank, in equal counts; None if it is not installed."""
    if not _FILE.exists():
        return None
    left_out = {name: ModuleType(name) for name in _LEFT_OUT}
    for name, attributes in _LEFT_OUT.items():
        left_out[name].__path__ = []  # a package
        for attribute in attributes:
            setattr(left_out[name], attribute, None)
    spec = importlib.util.spec_from_file_location("verl_seqlen_balancing", _FILE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    with patch.dict(sys.modules, left_out):
        spec.loader.exec_module(module)
    return lambda costs, ranks: module.get_seqlen_balanced_partitions(costs, ranks, equal_size=True)

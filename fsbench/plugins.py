"""Discovery of plugins: strategies, workloads and clusters, ours and anyone's, through the same entry points.

Three stages, three types. A `FoundPlugin` is read from package metadata and nothing of it is imported; a
`LoadedPlugin` is its class, imported and checked against its contract; `create` makes an instance with typed
options. A broken plugin disturbs only the runs that ask for it.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from fsbench.errors import FsbenchError, UserError
from fsbench.options import Spec, build_options, nearest

NOUNS = {
    "sharding": "sharding strategy",
    "embedding": "embedding strategy",
    "collectives": "collectives strategy",
    "sync": "sync strategy",
    "workloads": "workload",
    "clusters": "cluster",
}
"""What a plugin of each kind is called in messages. The kinds are the entry-point groups `fsbench.<kind>`."""
KINDS = tuple(NOUNS)
NO_SUMMARY = "(no summary)"


@dataclass(frozen=True, order=True)
class FoundPlugin:
    """A plugin as its distribution announces it; `value` is `module:attribute`, not yet imported."""

    kind: str
    name: str
    value: str
    distribution: str
    version: str

    @property
    def module(self) -> str:
        return self.value.partition(":")[0].strip()

    @property
    def attribute(self) -> str:
        return self.value.partition(":")[2].partition("[")[0].strip()

    @property
    def origin(self) -> str:
        return f"{self.distribution} {self.version}"

    def __str__(self) -> str:
        return f"{NOUNS[self.kind]} {self.name} ({self.origin})"


@dataclass(frozen=True)
class LoadedPlugin:
    """A plugin whose class is imported, keeps its contract and can be instantiated."""

    found: FoundPlugin
    cls: type[Any]


def find_plugins(kind: str) -> tuple[FoundPlugin, ...]:
    """Every plugin of a kind, by name, then distribution. Imports none of them.

    A name that two distributions offer is listed twice; only asking for it is an error.
    """
    if kind not in NOUNS:
        raise UserError(f"unknown axis {kind!r}; {nearest(kind, KINDS)}")
    return tuple(plugin for plugin in _scan(tuple(sys.path)) if plugin.kind == kind)


def find_plugin(kind: str, name: str) -> FoundPlugin:
    """The one plugin of that name.

    Raises:
        UserError: no distribution offers the name, or more than one does.
    """
    plugins = find_plugins(kind)
    matches = [plugin for plugin in plugins if plugin.name == name]
    if not matches:
        raise UserError(f"unknown {NOUNS[kind]} {name!r}; {nearest(name, {plugin.name for plugin in plugins})}")
    if len(matches) > 1:
        origins = " and ".join(plugin.origin for plugin in matches)
        raise UserError(f"{NOUNS[kind]} {name!r} is offered by {origins}; uninstall one of them")
    return matches[0]


def load_plugin(kind: str, name: str) -> LoadedPlugin:
    """Imports the plugin of that name.

    Raises:
        UserError: an unknown or ambiguous name, a module that does not import, an attribute that is not
            there, or a class that does not keep its contract. The message names the distribution.
    """
    found = find_plugin(kind, name)
    try:
        module = importlib.import_module(found.module)
        cls: Any = functools.reduce(getattr, found.attribute.split("."), module)
    except (Exception, SystemExit) as error:
        raise UserError(f"{found} cannot be loaded: {_describe(error)}") from error
    if fault := _contract_fault(cls, _contract(kind)):
        raise UserError(f"{found}: {found.value} {fault}")
    return LoadedPlugin(found, cls)


def create(kind: str, spec: Spec) -> Any:
    """An instance of the plugin that `spec` names, with its options.

    Raises:
        UserError: what `load_plugin` refuses, an unknown or badly typed option, or a constructor that fails.
    """
    plugin = load_plugin(kind, spec.name)
    options = build_options(plugin.cls.Options, spec.options, owner=f"{NOUNS[kind]} {spec.name}")
    try:
        return plugin.cls(options)
    except FsbenchError:
        raise
    except Exception as error:
        raise UserError(f"{plugin.found} cannot be created: {_describe(error)}") from error


def summary(found: FoundPlugin) -> str:
    """The first line of the class's docstring, read from its source: the module is never imported."""
    try:
        path = _source(found.module)
        tree = ast.parse(path.read_bytes()) if path else None
    except (OSError, SyntaxError, ValueError, RecursionError):
        return NO_SUMMARY
    node = _find_class(tree, found.attribute.split(".")) if tree else None
    lines = ((node and ast.get_docstring(node)) or "").strip().splitlines()
    return lines[0] if lines else NO_SUMMARY


@functools.cache
def _scan(path: tuple[str, ...]) -> tuple[FoundPlugin, ...]:
    """All plugins on an import path, sorted. Cached, because it reads every installed distribution."""
    found: list[FoundPlugin] = []
    seen: set[str] = set()
    for distribution in metadata.distributions(path=list(path)):
        try:
            plugins = list(_announced(distribution))
        except Exception as error:
            # One unreadable distribution must not hide the others.
            warnings.warn(f"ignored a package with unreadable metadata: {_describe(error)}", stacklevel=2)
            continue
        names = {plugin.distribution for plugin in plugins}
        # A distribution may lie twice on the path (an editable install beside its build): the first counts.
        if names.isdisjoint(seen):
            found += plugins
        seen |= names
    return tuple(sorted(found))


def _announced(distribution: metadata.Distribution) -> Iterator[FoundPlugin]:
    # Names and versions cost a parse of the whole metadata file, so only those of our plugins are read.
    for point in distribution.entry_points:
        group, _, kind = point.group.partition(".")
        if group == "fsbench" and kind in NOUNS:
            yield FoundPlugin(
                kind,
                point.name,
                point.value,
                distribution.metadata["Name"] or "(unnamed)",
                distribution.version or "(no version)",
            )


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _contract(kind: str) -> type:
    # Here, because the contracts of workloads import numpy, which listing must not.
    if kind == "workloads":
        from fsbench.workload import Workload

        return Workload
    if kind == "clusters":
        from fsbench.launch.cluster import Cluster

        return Cluster
    from fsbench.axes import CONTRACTS

    return CONTRACTS[kind]


def _contract_fault(cls: Any, contract: type) -> str | None:
    name = f"{contract.__module__}.{contract.__name__}"
    if not (inspect.isclass(cls) and issubclass(cls, contract)):
        return f"is not a subclass of {name}"
    if absent := sorted(getattr(cls, "__abstractmethods__", ())):
        return f"does not define {', '.join(absent)}, which {name} asks for"
    options: Any = getattr(cls, "Options", None)
    if not (inspect.isclass(options) and dataclasses.is_dataclass(options)):
        return "has Options that are not a dataclass"
    return None


def _source(module: str) -> Path | None:
    """The file of a module. Only its top-level package is looked up: more would import the parents."""
    top, *parts = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if not parts:
        return Path(spec.origin) if spec.origin else None
    for folder in spec.submodule_search_locations or ():
        base = Path(folder, *parts)
        for candidate in (base / "__init__.py", base.with_name(base.name + ".py")):
            if candidate.is_file():
                return candidate
    return None


def _find_class(tree: ast.AST, names: list[str]) -> ast.ClassDef | None:
    """The class `Outer.Inner` for `["Outer", "Inner"]`."""
    node: Any = tree
    for name in names:
        node = next((n for n in node.body if isinstance(n, ast.ClassDef) and n.name == name), None)
        if node is None:
            return None
    return node

"""Discovery of plugins: strategies, workloads and clusters, ours and anyone's, through the same entry points.

Three stages, three types, so that no function can be given a half-ready plugin. A `FoundPlugin` is read from package
metadata and nothing of it is imported. A `LoadedPlugin` is what its entry point names, imported, of which nothing is
known. A `ClassifiedPlugin` is a class that keeps the contract of its kind; `create` makes an instance of it with typed
options. A broken plugin disturbs only the runs that ask for it, and every message about a plugin names its
distribution and version.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import operator
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from fsbench.errors import FsbenchError, UserError
from fsbench.options import Spec, build_options, is_name, nearest, type_fault

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
ALL = "all"
"""On the command line: every installed plugin of a kind. No plugin may be called so."""


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
    """What an entry point names, imported: any object."""

    found: FoundPlugin
    attribute: Any


@dataclass(frozen=True)
class ClassifiedPlugin:
    """A class that keeps the contract of the plugin's kind, and whose options can be typed."""

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
        UserError: no distribution offers the name, more than one does, or it is no name for a plugin.
    """
    plugins = find_plugins(kind)
    matches = [plugin for plugin in plugins if plugin.name == name]
    if not matches:
        raise UserError(f"unknown {NOUNS[kind]} {name!r}; {nearest(name, {plugin.name for plugin in plugins})}")
    if len(matches) > 1:
        origins = " and ".join(f"{plugin.origin} ({plugin.value})" for plugin in matches)
        raise UserError(f"{NOUNS[kind]} {name!r} is offered by {origins}; uninstall or rename one of them")
    if fault := _name_fault(name):
        raise UserError(f"{matches[0]} is refused: {fault}; its entry point needs another name")
    return matches[0]


def load_plugin(kind: str, name: str) -> ClassifiedPlugin:
    """Imports the plugin of that name, and finds out whether it is what its kind asks for.

    Raises:
        UserError: what `find_plugin` refuses, a module that does not import, an attribute that is not there, or a
            class that does not keep its contract. The message names the distribution.
    """
    return _classify(_load(find_plugin(kind, name)))


def create(kind: str, spec: Spec) -> Any:
    """An instance of the plugin that `spec` names, with its options.

    Raises:
        UserError: what `load_plugin` refuses, an unknown or badly typed option, or a constructor that fails.
    """
    plugin = load_plugin(kind, spec.name)
    options = _options(plugin, spec)
    try:
        return plugin.cls(options)
    except FsbenchError as error:
        raise type(error)(f"{plugin.found}: {error}") from error
    except Exception as error:
        raise UserError(f"{plugin.found} cannot be created: {_describe(error)}") from error


def _options(plugin: ClassifiedPlugin, spec: Spec) -> Any:
    try:
        return build_options(plugin.cls.Options, spec.options, owner=str(plugin.found))
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{plugin.found} cannot check its options: {_describe(error)}") from error


def _load(found: FoundPlugin) -> LoadedPlugin:
    try:
        module = importlib.import_module(found.module)
        return LoadedPlugin(found, functools.reduce(getattr, found.attribute.split("."), module))
    except (Exception, SystemExit) as error:
        raise UserError(f"{found} cannot be loaded: {_describe(error)}") from error


def _classify(loaded: LoadedPlugin) -> ClassifiedPlugin:
    if fault := _contract_fault(loaded.attribute, _contract(loaded.found.kind)):
        raise UserError(f"{loaded.found}: {loaded.found.value} {fault}")
    return ClassifiedPlugin(loaded.found, loaded.attribute)


def _name_fault(name: str) -> str | None:
    if name == ALL:
        return f"{ALL!r} means every plugin on the command line"
    if not is_name(name):
        return "a name has letters, digits, '_', '.' and '-' only and begins with a letter or digit"
    return None


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
            where = getattr(distribution, "_path", "of unknown place")
            warnings.warn(f"ignored a package with unreadable metadata, {where}: {_describe(error)}", stacklevel=2)
            continue
        names = {plugin.distribution for plugin in plugins}
        # A distribution may lie twice on the path (an editable install beside its build): the first counts.
        if names.isdisjoint(seen):
            found += plugins
        seen |= names
    order = operator.attrgetter("name", "distribution", "version", "value")
    return tuple(sorted(dict.fromkeys(found), key=order))


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


def _is_frozen_dataclass(cls: Any) -> bool:
    parameters = getattr(cls, "__dataclass_params__", None)
    return inspect.isclass(cls) and parameters is not None and parameters.frozen


def _contract_fault(cls: Any, contract: type) -> str | None:
    name = f"{contract.__module__}.{contract.__name__}"
    if not (inspect.isclass(cls) and issubclass(cls, contract)):
        return f"is not a subclass of {name}"
    if absent := sorted(getattr(cls, "__abstractmethods__", ())):
        return f"does not define {', '.join(absent)}, which {name} asks for"
    options: Any = getattr(cls, "Options", None)
    if not _is_frozen_dataclass(options):
        return "has Options that are not a frozen dataclass"
    if fault := type_fault(options):
        return f"has Options that cannot be typed: {fault}"
    return None

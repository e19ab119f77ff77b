"""What a plugin is, in one line of its own, read from its source text: nothing is imported; listing is fast."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

from fsbench.plugins import FoundPlugin

NO_SUMMARY = "(no summary)"


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

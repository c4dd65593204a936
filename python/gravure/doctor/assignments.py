"""Which line of a class assigns an attribute."""

from __future__ import annotations

import ast
import inspect
import textwrap
from pathlib import Path
from typing import Any


def assigned_at(owner: Any, name: str) -> str:
    """ "model.py:31" for the line of the owner's class that assigns `self.name`; "" if none does.

    Not by `__init__`, which makes it: by the other methods.
    """
    for kind in type(owner).__mro__:
        if kind.__module__.partition(".")[0] == "torch" or kind is object:
            continue
        if location := _assignment(kind, name):
            return location
    return ""


def _assignment(kind: type, name: str) -> str:
    try:
        lines, first = inspect.getsourcelines(kind)
        file = inspect.getsourcefile(kind) or ""
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return ""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = (node for node in ast.walk(tree) if isinstance(node, kinds))
    for function in functions:
        if function.name == "__init__":
            continue
        for node in ast.walk(function):
            if any(_is(target, name) for target in _targets(node)):
                line = first + node.lineno - 1  # type: ignore[attr-defined]
                return f"{Path(file).name}:{line}"
    return ""


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        found: list[ast.expr] = []
        for target in node.targets:
            found += target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        return found
    if isinstance(node, (ast.AnnAssign, ast.AugAssign)):
        return [node.target]
    return []


def _is(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Attribute) and target.attr == name

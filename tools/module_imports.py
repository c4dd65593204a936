"""The modules of python/gravure, in which room each lies, and which others it imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "python" / "gravure"


def modules() -> dict[str, Path]:
    """By name, as `graphs.names`; the package itself is ``."""
    return {_name_of(file): file for file in sorted(PACKAGE.rglob("*.py"))}


def room_of(module: str) -> str:
    """ "" for a public module."""
    first, dot, _ = module.partition(".")
    return first if dot or (PACKAGE / first).is_dir() else ""


def imports() -> dict[str, set[str]]:
    """By module the modules that it imports, wherever in it."""
    files = modules()
    return {name: set(_imports_of(file, files.keys())) for name, file in files.items()}


def _name_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports_of(file: Path, known: Set[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
            yield from (n.partition(".")[2] for n in names if n.split(".")[0] == "gravure")
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, file)
            if base is None:
                continue
            for name in node.names:
                member = ".".join([*base, name.name])
                yield member if member in known else ".".join(base)


def _base(node: ast.ImportFrom, file: Path) -> list[str] | None:
    """The path of what is imported from; None where that is another package."""
    below = node.module.split(".") if node.module else []
    if node.level == 0:
        return below[1:] if below[0] == "gravure" else None
    folder = file.relative_to(PACKAGE).parent.parts
    return [*folder[: len(folder) + 1 - node.level], *below]

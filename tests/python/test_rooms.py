"""The rooms of python/gravure: who imports whom, as docs/design.md says it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python/gravure"
FILES = sorted(PACKAGE.rglob("*.py"))
_SECTION = re.compile(r"^## Rooms of python/gravure\n(.*?)^## ", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\| `(\w+)/` \|[^|]*\|([^|]*)\|$", re.MULTILINE)


def arrows() -> dict[str, set[str]]:
    """What the modules of a room may import besides their own: the table in docs/design.md."""
    section = _SECTION.search((ROOT / "docs/design.md").read_text())
    assert section is not None
    rows = _ROW.findall(section[1])
    return {room: set(re.findall(r"`(\w+)`", allowed)) for room, allowed in rows}


def module_of(file: Path) -> str:
    """`graphs.names`; the package itself is ``."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(file: Path, modules: set[str]) -> Iterator[str]:
    """Modules of the package that `file` imports, wherever in it."""
    here = [*file.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found = [name.name for name in node.names]
            yield from (n.partition(".")[2] for n in found if n.split(".")[0] == "gravure")
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.level == 0:
            first, _, below = (node.module or "").partition(".")
            base = below.split(".") if below else []
            if first != "gravure":
                continue
        else:
            base = here[: len(here) + 1 - node.level]
            base = [*base, *(node.module.split(".") if node.module else [])]
        for name in node.names:
            member = ".".join([*base, name.name])
            yield member if member in modules else ".".join(base)


MODULES = {module_of(file) for file in FILES}
IMPORTS = {module_of(file): set(imports_of(file, MODULES)) for file in FILES}


def room_of(module: str) -> str:
    """ "" for a public module."""
    first, dot, _ = module.partition(".")
    return first if dot or (PACKAGE / first).is_dir() else ""


def test_the_table_has_every_room() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert rooms == arrows().keys()
    folders = {file.parent for file in FILES} - {PACKAGE}
    assert {folder.name for folder in folders} == rooms  # a room has no rooms


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_room_imports_only_what_it_may(module: str) -> None:
    room = room_of(module)
    if not room:
        return
    allowed = arrows()[room]
    for other in IMPORTS[module]:
        target = room_of(other)
        assert target == room or (target or other) in allowed, f"{module} imports {other}"


def test_no_modules_import_each_other() -> None:
    try:
        list(TopologicalSorter(IMPORTS).static_order())
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' <- '.join(error.args[1])}")


def test_an_init_holds_no_code() -> None:
    """So that a module of a room can be imported alone; the package's own names what is public."""
    for file in FILES:
        if file.name == "__init__.py" and file.parent != PACKAGE:
            (docstring,) = ast.parse(file.read_text()).body
            assert isinstance(docstring, ast.Expr), file

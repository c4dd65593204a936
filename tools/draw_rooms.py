"""Draws docs/architecture.md from the code: the rooms, who may use them, and a step's way.

    tools/draw_rooms.py          writes the drawn parts of the page anew
    tools/draw_rooms.py --check  exit status 1 if they are not what the code says

The C++ rooms are Bazel's: BUILD.bazel says what a room holds and what it uses. Those of Python are
packages: the docstring says what one holds, imports say what it uses. A stop of the way must be
defined where the page says, and be named by the file of a stop before it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import module_imports
from module_imports import room_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
LAYERS = ("ir", "passes", "runtime")


@dataclass(frozen=True)
class Room:
    name: str  # "ir/memory"
    holds: str
    uses: frozenset[str]  # names of rooms


@dataclass(frozen=True)
class Stop:
    file: str
    name: str  # of a function or a class
    does: str
    called: str = ""  # how a stop before it names it, if otherwise


# What one call of a compiled model goes through, once everything is captured.
WAY = (
    Stop("python/gravure/backend.py", "compile_graph", "Dynamo's graph"),
    Stop("python/gravure/calls/frame.py", "FrameRequest", "differentiated, once"),
    Stop("python/gravure/calls/frame.py", "FrameCall", "each call"),
    Stop("python/gravure/calls/compiled_graph.py", "run_native", "by the library"),
    Stop("python/gravure/calls/native_node.py", "native_call", "of its sizes and module", "native"),
    Stop(
        "python/csrc/differentiable_run.cpp",
        "runDifferentiable",
        "in C++: a node of autograd's",
        "run_differentiable",
    ),
    Stop("python/csrc/loaded_program.cpp", "runLogged", "with what is bound"),
    Stop("runtime/step/runtime.cpp", "run", "one step at a time"),
    Stop("runtime/step/choose_path.cpp", "choosePath", "by a seal, or the slow way?"),
    Stop("runtime/step/choose_path.cpp", "sealedPath", "captured whole"),
    Stop("runtime/step/seal.h", "Seal", "all is as it was captured"),
    Stop("runtime/step/executor.cpp", "runServed", "served"),
    Stop("runtime/step/executor.cpp", "runLaunch", "each partition"),
    Stop("runtime/step/partition.h", "replay", "captured"),
    Stop("runtime/device/device.h", "replay", "on the device"),
)


def cpp_rooms() -> list[Room]:
    """In the order of the folders."""
    rooms = []
    for layer in LAYERS:
        for build in sorted((ROOT / layer).glob("*/BUILD.bazel")):
            text = build.read_text()
            name = f"{layer}/{build.parent.name}"
            uses = {_room_of_label(label) for label in re.findall(r'"(//[^"]+)"', _deps(text))}
            rooms.append(Room(name, _comment(text), frozenset(uses - {name, ""})))
        rooms.extend(_rest_of(layer))
    return rooms


def _rest_of(layer: str) -> list[Room]:
    """The files of a layer that lie in no room: passes of one file each, the CUDA device."""
    blocks = (ROOT / layer / "BUILD.bazel").read_text().split("\n)\n")
    names = {"rewrites": "passes", "cuda": "runtime/cuda"}  # by target
    found = []
    for block in blocks:
        target = re.search(r'^    name = "(\w+)"', block, re.M)
        if target is None or target[1] not in names:
            continue
        name = names[target[1]]
        uses = {_room_of_label(label) for label in re.findall(r'"(//[^"]+)"', _deps(block))}
        found.append(Room(name, _comment(block), frozenset(uses - {name, ""})))
    return found


def inner_rooms() -> list[Room]:
    """Folders of one package: of the library that Python loads, and of the tool."""
    rooms = []
    for package in ("python", "tools"):
        for block in (ROOT / package / "BUILD.bazel").read_text().split("\n)\n"):
            folder = re.search(r'^inner_room\(.*^    folder = "([^"]+)"', block, re.M | re.S)
            if folder is not None:
                rooms.append(Room(f"{package}/{folder[1]}", _comment(block), frozenset()))
    return rooms


def _deps(text: str) -> str:
    found = re.search(r"deps = \[(.*?)\]", text, re.S)
    return found[1] if found else ""


def _room_of_label(label: str) -> str:
    """`//ir/core` is a room; `//passes:pass` and `//runtime:api` are headers for all of theirs."""
    path, _, target = label.removeprefix("//").partition(":")
    if target in ("pass", "api"):
        return ""
    return path


def _comment(text: str) -> str:
    lines = re.findall(r"^# (.*)$", text, re.M)
    return " ".join(lines)


def python_rooms() -> list[Room]:
    uses: dict[str, set[str]] = {}
    for module, imported in module_imports.imports().items():
        uses.setdefault(room_of(module), set()).update(map(room_of, imported))
    return [
        Room(
            f"gravure/{room}",
            _docstring(room),
            frozenset(f"gravure/{n}" for n in used - {room, ""}),
        )
        for room, used in sorted(uses.items())
        if room
    ]


def _docstring(room: str) -> str:
    """The first paragraph of the package's."""
    text = (module_imports.PACKAGE / room / "__init__.py").read_text()
    docstring = ast.get_docstring(ast.parse(text)) or ""
    return docstring.split("\n\n")[0].replace("\n", " ")


def reduced(rooms: list[Room]) -> list[tuple[str, str]]:
    """Arrows without those that follow from others."""
    uses = {room.name: room.uses for room in rooms}

    def reach(name: str) -> set[str]:
        found: set[str] = set()
        for used in uses.get(name, ()):
            found |= {used} | reach(used)
        return found

    return [
        (room.name, used)
        for room in rooms
        for used in sorted(room.uses)
        if not any(used in reach(other) for other in room.uses if other != used)
    ]


def picture(rooms: list[Room]) -> str:
    lines = ["```mermaid", "flowchart BT"]
    for layer in dict.fromkeys(room.name.split("/")[0] for room in rooms):
        lines.append(f"  subgraph {layer}")
        lines += [f"    {_id(r.name)}[{r.name}]" for r in rooms if r.name.split("/")[0] == layer]
        lines.append("  end")
    lines += [f"  {_id(user)} --> {_id(used)}" for user, used in reduced(rooms)]
    return "\n".join([*lines, "```"])


def _id(name: str) -> str:
    return name.replace("/", "_") + "_"


def table(rooms: list[Room]) -> str:
    lines = ["| room | what it holds |", "|---|---|"]
    for room in rooms:
        path = f"python/{room.name}" if room.name.startswith("gravure/") else room.name
        lines.append(f"| [`{path}`](../{path}) | {room.holds} |")
    return "\n".join(lines)


def way() -> str:
    lines = ["```mermaid", "flowchart TD"]
    for number, stop in enumerate(WAY):
        _require_defined(stop)
        lines.append(f'  s{number}["{stop.name}<br/><small>{stop.file}</small>"]')
        if number > 0:
            _require_named(WAY[:number], stop)
            lines.append(f'  s{number - 1} -->|"{stop.does}"| s{number}')
    return "\n".join([*lines, "```"])


def _text(file: str) -> str:
    try:
        return (ROOT / file).read_text()
    except OSError:
        sys.exit(f"draw_rooms: {file} is a stop of the way, and is not there: mend WAY")


def _require_defined(stop: Stop) -> None:
    defined = rf"(?:def|class) {stop.name}\b" if stop.file.endswith(".py") else rf"\b{stop.name}\("
    if not re.search(defined, _text(stop.file)):
        sys.exit(f"draw_rooms: {stop.file} does not define {stop.name}: mend WAY")


def _require_named(before: Sequence[Stop], stop: Stop) -> None:
    name = stop.called or stop.name
    if not any(re.search(rf"\b{name}\b", _text(each.file)) for each in before):
        sys.exit(f"draw_rooms: no stop before {stop.file} names {name}: mend WAY")


def drawn(text: str) -> str:
    """The page with its drawn parts as the code says."""
    rooms = cpp_rooms() + python_rooms()
    for name, part in (
        ("rooms", picture(rooms)),
        ("table", table(rooms + inner_rooms())),
        ("way", way()),
    ):
        begin, end = f"<!-- drawn: {name} -->", f"<!-- end: {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            sys.exit(f"draw_rooms: docs/architecture.md must have {begin} and {end} once each")
        head, rest = text.split(begin)
        text = head + begin + "\n" + part + "\n" + end + rest.split(end)[1]
    return text


def main() -> None:
    text = PAGE.read_text()
    new = drawn(text)
    if sys.argv[1:] == ["--check"]:
        if new != text:
            sys.exit("docs/architecture.md is not what the code says: run tools/draw_rooms.py")
        return
    if sys.argv[1:]:
        sys.exit("usage: draw_rooms.py [--check]")
    PAGE.write_text(new)


if __name__ == "__main__":
    main()

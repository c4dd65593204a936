"""docs/architecture.md: its pictures are what the code says, and what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import draw_rooms
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_the_pictures_are_drawn_from_the_code() -> None:
    assert draw_rooms.drawn(PAGE) == PAGE, "run tools/draw_rooms.py"


def test_every_room_says_what_it_holds() -> None:
    rooms = draw_rooms.cpp_rooms() + draw_rooms.python_rooms()
    assert len(rooms) > 20
    assert [room.name for room in rooms if len(room.holds) < 20] == []


def test_every_folder_of_a_layer_is_a_room() -> None:
    named = {room.name for room in draw_rooms.cpp_rooms()}
    folders = {
        str(folder.relative_to(ROOT))
        for layer in draw_rooms.LAYERS
        for folder in (ROOT / layer).iterdir()
        if folder.is_dir()
    }
    assert folders <= named


def test_every_file_that_the_page_names_is_there() -> None:
    named = re.findall(r"`((?:ir|passes|runtime|python|tools|tests|docs)/[\w/.]*)`", PAGE)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_a_stop_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = draw_rooms.Stop("runtime/step/executor.cpp", "runNothing", "")
    monkeypatch.setattr(draw_rooms, "WAY", (gone,))
    with pytest.raises(SystemExit, match=r"executor\.cpp does not define runNothing"):
        draw_rooms.way()
    apart = (
        draw_rooms.Stop("runtime/step/executor.cpp", "runServed", ""),
        draw_rooms.Stop("ir/text/text_reader.cpp", "readProgram", ""),
    )
    monkeypatch.setattr(draw_rooms, "WAY", apart)
    with pytest.raises(SystemExit, match="no stop before .* names readProgram"):
        draw_rooms.way()

"""Private names of PyTorch's: all are there, and what needs one that is not degrades alone.

The first test says what a new minor lacks, before anything else fails on it; so does the table as a
script, with any Python that has torch: `python python/gravure/torch_api/private_names.py`.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from gravure.torch_api.private_names import MINOR, NAMES, Private, Without, missing
from gravure.torch_api.private_names import missing_in_source as missing_member
from running import need_library

ROOM = Path(__file__).resolve().parents[2] / "python/gravure/torch_api"
TABLE = ROOM / "private_names.py"
OURS = {"MissingName", "NAMES", "first_missing", "is_there", "warn_of"}


@pytest.mark.parametrize("row", [row for row in NAMES.values() if row.is_expected], ids=str)
def test_this_torch_has_it(row: Private) -> None:
    problem = missing(row) or missing_member(row)
    assert not problem, f"torch {torch.__version__}: {problem}; without it {row.without.value}"


@pytest.mark.parametrize("row", [row for row in NAMES.values() if not row.is_expected], ids=str)
def test_this_torch_has_it_no_more(row: Private) -> None:
    """Or not yet: a minor that has it nevertheless may use it."""
    assert missing(row), f"torch 2.{MINOR} has it"


def imported(file: Path) -> Iterator[str]:
    """What a module of the room takes from the table, at its top and in functions."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "private_names":
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "private_names":
            yield node.attr


def test_the_table_has_what_the_room_uses_and_nothing_else() -> None:
    used = {name for file in ROOM.glob("*.py") for name in imported(file)} - OURS
    assert used == {row.known_as for row in NAMES.values() if not row.met}


def test_no_module_of_the_room_goes_past_the_table() -> None:
    owners = {row.owner for row in NAMES.values()} - {"torch"}
    for file in set(ROOM.glob("*.py")) - {TABLE}:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                assert node.module not in owners, f"{file.name}: from {node.module}"
            if isinstance(node, ast.Attribute):
                name = ast.unparse(node)
                assert not re.match(r"torch\._(?!_)", name), f"{file.name}: {name}"


def test_the_script_says_what_is_missing(tmp_path: Path) -> None:
    text = TABLE.read_text()
    damaged = tmp_path / "private_names.py"
    damaged.write_text(text.replace('"aot_autograd"', '"aot_autograd_2"'))
    done = subprocess.run([sys.executable, str(damaged)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "aot_autograd_2; without it nothing is compiled" in done.stdout
    assert subprocess.run([sys.executable, str(TABLE)], capture_output=True).returncode == 0


# Where a graph is trained that has nothing special, these say that something is missing.
_TOLD = {Without.COMPILED, Without.BITS, Without.BUNDLES}


def test_without_any_of_them_a_model_trains_with_eagers_bits() -> None:
    need_library()
    names = [row.known_as for row in NAMES.values() if row.is_expected and not row.met]
    script = str(Path(__file__).with_name("without_names.py"))
    environment = os.environ | {"PYTHONPATH": str(ROOM.parents[1])}
    done = subprocess.run(
        [sys.executable, script, *names], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    found = {one["name"]: one for one in map(json.loads, done.stdout.splitlines())}
    assert found.keys() == set(names)
    for name, one in found.items():
        row = NAMES[name]
        assert not one["failed"], f"{row}: {one['failed']}"
        if row.without in _TOLD:
            assert any(f"{row}_gone" in said for said in one["said"]), f"{row}: {one['said']}"

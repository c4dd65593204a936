"""The snippets of README.md run as they stand, one after another."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import gravure
import gravure_native
import pytest
import torch
from running import need_library

need_library()
pytestmark = pytest.mark.usefixtures("fresh")
ROOT = Path(__file__).resolve().parents[2]


def blocks(language: str) -> list[str]:
    """Code of README's section on the ways in."""
    section = (ROOT / "README.md").read_text().split("\n## Ways in\n")[1].split("\n## ")[0]
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return [code for name, code in fences if name == language]


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the Python snippets leave, run in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"older": {graph.number for graph in gravure.report().graphs}}
    for number, code in enumerate(blocks("python")):
        exec(compile(code, f"README.md, snippet {number}", "exec"), names)
    return names


def test_python(ran: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(blocks("python")) == 4
    graphs = [g for g in gravure.report().graphs if g.number not in ran["older"]]
    programs = [p.partitions for graph in graphs for p in graph.programs]
    assert programs[0] == {"forward": ["captured"], "backward": ["captured"]}
    assert programs[-1] == {"step": ["captured"]}  # the first step made the optimizer's state
    loss = ran["loss"]
    assert isinstance(loss, torch.Tensor) and loss.isfinite()
    for folder in ("step", "pair"):
        assert {f.name for f in (tmp_path / folder).iterdir()} >= {"program.gv", "inputs.pt"}


@pytest.mark.usefixtures("ran")
def test_shell() -> None:
    try:
        tool = gravure_native.tool_path()
    except FileNotFoundError:
        pytest.skip("the command-line tool was not built")
    (commands,) = blocks("")
    lines = [line.partition("#")[0].split() for line in commands.splitlines()]
    assert len(lines) == 3
    for line in lines:
        assert line[0] == "gravure"
        done = subprocess.run([tool, *line[1:]], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert "graph step" in done.stdout

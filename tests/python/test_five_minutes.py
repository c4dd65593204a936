"""docs/five-minutes.md, done as a newcomer does it: train, read the report, cure what is missed."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import gravure_native
from running import need_library
from test_snippets import snippets

need_library()
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "five-minutes.md").read_text()


def _train(code: str, folder: Path) -> str:
    """The words of the report's page."""
    (folder / "train.py").write_text(code)
    package = str(Path(gravure_native.__file__).parent)
    environment = os.environ | {"PYTHONPATH": package, "GRAVURE_REPORT": "report.html"}
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    page = (folder / "report.html").read_text()
    words = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", " ", words))


def test_a_missed_capture_is_read_and_cured(tmp_path: Path) -> None:
    first, cure = (snippet.code for snippet in snippets(PAGE))
    missed = _train(first, tmp_path)
    line = next(n for n, text in enumerate(first.splitlines(), 1) if ".item()" in text)
    change = missed.partition("What should I change first?")[2].partition("One step")[0]
    assert "graph break" in change and f"train.py:{line}" in change
    lines = first.splitlines()
    at = next(i for i, text in enumerate(lines) if ".item()" in text)
    lines[at : at + 2] = ["        " + text for text in cure.splitlines()]
    cured = _train("\n".join(lines) + "\n", tmp_path)
    assert "100 %" in cured and "graph break" not in cured

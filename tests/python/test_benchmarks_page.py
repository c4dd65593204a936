"""docs/benchmarks.md and its pictures are made from the JSON in docs/figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import draw_benchmarks
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("path", draw_benchmarks.made(), ids=lambda path: path.name)
def test_what_is_made_is_what_the_figures_say(path: Path) -> None:
    assert path.read_text() == draw_benchmarks.made()[path], "tools/draw_benchmarks.py"


@pytest.mark.parametrize("file", sorted((ROOT / "docs/figures").glob("*.json")), ids=str)
def test_each_figure_says_where_it_is_from(file: Path) -> None:
    for run in json.loads(file.read_text())["runs"]:
        assert run["machine"] and run["rows"]
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", run["date"])
        program = run["command"].split()[0]
        assert program == "gravure" or (ROOT / program).is_file(), program


def test_a_figure_that_changes_changes_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(name: str) -> list[draw_benchmarks.Row]:
        runs = json.loads((ROOT / f"docs/figures/{name}.json").read_text())["runs"]
        if name == "steps":
            later = {"config": "tiny", "variant": "gravure", "step_ms": 0.33, "reserved_mib": 58}
            runs.append({**runs[0], "date": "2026-12-01", "rows": [later]})
        return runs

    monkeypatch.setattr(draw_benchmarks, "runs_of", changed)
    page = draw_benchmarks.made()[draw_benchmarks.PAGE]
    assert "| **0.33** | **0.05** |" in page and "| **0.47** | **0.07** |" not in page
    assert "2026-12-01" in page


def test_figures_of_the_readme_are_there() -> None:
    text = (ROOT / "README.md").read_text()
    rows = {
        (f"{row['step_ms']:.2f}".rstrip("0"), str(row["reserved_mib"]))
        for row in draw_benchmarks.rows_of("steps", "config", "variant")
    }
    rounded = {(f"{float(ms):.1f}", mib) for ms, mib in rows} | rows
    shown = re.findall(r"^\|.*\| ([\d.]+) \| (\d+) \|$", text, re.MULTILINE)
    assert shown and set(shown) <= rounded, set(shown) - rounded

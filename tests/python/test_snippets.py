"""Every Python snippet of README.md and of the pages runs: docs/development.md says how it is told
what it needs."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gravure
import pytest
import torch
import torch.nn.functional as F
from running import need_library

need_library()
pytestmark = pytest.mark.usefixtures("fresh")
ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_PART = re.compile(
    r"^<!-- run: (?P<told>.*?)-->$|^```(?P<language>[\w+]*)[^\n]*\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass
class Snippet:
    """One fence; `needs` are packages, or "cuda"."""

    line: int
    code: str
    first: str = ""
    needs: list[str] = field(default_factory=list)
    left_out: str = ""


def snippets(text: str) -> list[Snippet]:
    """The Python of a page. Raises ValueError for a comment that says nothing we know."""
    found: list[Snippet] = []
    told = Snippet(0, "")
    for part in _PART.finditer(text):
        if part["told"] is not None:
            kind, _, rest = part["told"].strip().partition(" ")
            if part["told"].startswith("first\n"):
                told.first += part["told"].removeprefix("first\n")
            elif kind == "needs":
                told.needs.append(rest)
            elif kind == "not:" and rest:
                told.left_out = rest
            else:
                raise ValueError(f"what is `run: {part['told']}`?")
            continue
        if part["language"] == "python":
            told.line = text[: part.start("code")].count("\n") + 1
            told.code = part["code"]
            found.append(told)
        elif told != Snippet(0, ""):
            raise ValueError(f"`run:` stands in front of no Python: {part['code']}")
        told = Snippet(0, "")
    return found


def is_there(name: str) -> bool:
    if name == "cuda":
        return torch.cuda.is_available()
    return importlib.util.find_spec(name) is not None


WITH_SNIPPETS = [page for page in PAGES if snippets(page.read_text())]


@pytest.mark.parametrize("page", WITH_SNIPPETS, ids=lambda page: page.stem)
def test_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"torch": torch, "F": F, "gravure": gravure}
    ran = 0
    for snippet in snippets(page.read_text()):
        if snippet.left_out or not all(map(is_there, snippet.needs)):
            continue
        for code, line in ((snippet.first, 0), (snippet.code, snippet.line - 1)):
            # Where it fails, the traceback shows the page's own line.
            exec(compile("\n" * line + code, str(page), "exec"), names)
        ran += 1
    if not ran:
        pytest.skip("what its snippets need is not here")


def test_pages_that_people_begin_with_have_snippets() -> None:
    assert {"README", "five-minutes", "torch-compile", "see-it"} <= {p.stem for p in WITH_SNIPPETS}


def test_what_stands_in_front_of_a_snippet() -> None:
    page = "<!-- run: first\nx = 1\n-->\n<!-- run: needs nosuch -->\n```python\ny = x\n```\n"
    (found,) = snippets(page + "```\nno python\n```\n")
    assert found == Snippet(6, "y = x\n", "x = 1\n", ["nosuch"])
    assert not is_there("nosuch")
    with pytest.raises(ValueError, match="what is"):
        snippets("<!-- run: later -->\n```python\n```\n")
    with pytest.raises(ValueError, match="no Python"):
        snippets("<!-- run: needs cuda -->\n```\n```\n")

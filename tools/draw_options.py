"""Draws the table of options in docs/torch-compile.md from the docstrings of CompileOptions.

tools/draw_options.py          writes the table anew
tools/draw_options.py --check  exit status 1 if it is not what the docstrings say
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "torch-compile.md"
OPTIONS = ROOT / "python" / "gravure" / "options.py"
_PART = re.compile(r"(<!-- drawn: options -->\n).*?(<!-- end: options -->)", re.DOTALL)


def options() -> Iterator[tuple[str, str, str]]:
    """Name, default and meaning of each option. Raises ValueError for one without a docstring."""
    tree = ast.parse(OPTIONS.read_text())
    (kind,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "CompileOptions")
    for option, text in zip(kind.body, kind.body[1:], strict=False):
        if not isinstance(option, ast.AnnAssign) or option.value is None:
            continue
        name = ast.unparse(option.target)
        told = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        if not told:
            raise ValueError(f"option {name} has no docstring")
        default = ast.unparse(option.value).replace("'", '"').replace("()", "[]")
        own = name == "mode" or default != "None"  # None of the others is the library's to fill
        meaning = " ".join(str(text.value.value).split())
        yield name, f"`{default}`" if own else "library's", meaning


def drawn(page: str) -> str:
    """The page with its table as the docstrings say it."""
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for name, default, meaning in options():
        meaning = meaning.replace("](torch-compile.md#", "](#")
        rows.append(f"| `{name}` | {default} | {meaning} |")
    table = "\n".join(rows) + "\n"
    return _PART.sub(lambda found: f"{found[1]}{table}{found[2]}", page)


def main() -> int:
    page = PAGE.read_text()
    new = drawn(page)
    if sys.argv[1:] == ["--check"]:
        if new != page:
            print("docs/torch-compile.md is not what the docstrings say: tools/draw_options.py")
        return int(new != page)
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())

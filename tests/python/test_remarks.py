"""docs/remarks.md lists every remark, and each host reason is shown by a test."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

# What a program text cannot hold, or no pass gives: the test that shows it instead.
NOT_IN_GOLDENS = {
    "unsafe-tag": "tests/unit/passes/classify_capturability_test.cpp",
    "opaque-callable": "tests/unit/passes/classify_capturability_test.cpp",
    "capture-failed": "runtime",
}


def enumerators() -> list[str]:
    body = re.search(r"enum class HostReason[^{]*\{(.*?)\};", read("ir/core/reason.h"), re.S)
    assert body is not None
    return re.findall(r"^\s*([A-Z]\w*),", body.group(1), re.M)


def reason_names() -> dict[str, str]:
    """Enumerator to name."""
    return dict(re.findall(r'\{HostReason::(\w+),\s*"([a-z-]+)"', read("ir/core/reason.cpp")))


def read(path: str) -> str:
    return (ROOT / path).read_text()


def documented() -> list[str]:
    return re.findall(r"^\| `([a-z-]+)` \|", read("docs/remarks.md"), re.M)


def remark_names() -> set[str]:
    """String literals that name a remark where one is made."""
    made = re.compile(
        r'(?:add\(\s*RemarkKind::\w+,\s*(?:kPass|"runtime"),\s*|missed\(\s*|missed(?:As)?\([^;]*?,\s*)'
        r'"([a-z]+(?:-[a-z]+)+)"'
    )
    folders = ("passes", "runtime", "python/csrc")
    files = [f for folder in folders for f in (ROOT / folder).rglob("*.cpp")]
    found = {name for file in files for name in made.findall(file.read_text())}
    for file in (ROOT / "python/gravure/calls").glob("*.py"):  # "name: message"
        found |= set(re.findall(r'"([a-z]+(?:-[a-z]+)+): ', file.read_text()))
    return found


def test_every_reason_has_a_name() -> None:
    assert list(reason_names()) == enumerators()


def test_every_reason_has_a_row() -> None:
    rows = documented()
    assert [name for name in reason_names().values() if rows.count(name) != 1] == []


def test_every_remark_has_a_row() -> None:
    names = remark_names()
    assert {"host-reads-merged", "levels-refused", "guard-failed", "backward-missing"} <= names
    assert sorted(names - set(documented())) == []


def test_every_row_is_of_a_remark() -> None:
    known = remark_names() | set(reason_names().values())
    assert [row for row in documented() if row not in known] == []


def test_every_reason_has_a_golden() -> None:
    goldens = "".join(f.read_text() for f in (ROOT / "tests/golden").rglob("*.gv"))
    checks = "\n".join(re.findall(r"# CHECK.*", goldens))
    missing = [
        name
        for name in reason_names().values()
        if f"missed [{name}]" not in checks and name not in NOT_IN_GOLDENS
    ]
    assert missing == []


def test_exceptions_are_shown_elsewhere() -> None:
    names = {name: enumerator for enumerator, name in reason_names().items()}
    for name, file_or_folder in NOT_IN_GOLDENS.items():
        path = ROOT / file_or_folder
        files = [path] if path.is_file() else sorted((ROOT / "tests/unit/runtime").glob("*.cpp"))
        texts = [file.read_text() for file in files]
        assert any(names[name] in text or f'"{name}"' in text for text in texts), name

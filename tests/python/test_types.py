"""The types of what users call are right, by mypy, and the wheel says that they are there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import gravure
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python/gravure"
# What users call, and what it is made of; torch's own types are taken as they are.
PUBLIC = ["__init__", "backend", "compile_step", "drop_captures", "errors", "explain", "export"]
PUBLIC += ["options", "page", "report", "runtime", "sizes", "version"]
FLAGS = ["--follow-imports=silent", "--ignore-missing-imports", "--python-version=3.10"]

_USE = """
import gravure

found: gravure.Report = gravure.report(html="report.html")
count: int = len(found.graphs[0].programs)
plan: gravure.Explanation = gravure.explain(print)
plan.to_html("plan.html")
version: str = gravure.__version__
gravure.report(htm="report.html")  # no such argument
"""


def _mypy(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("mypy")
    cache = f"--cache-dir={cwd / '.mypy_cache'}"
    command = [sys.executable, "-m", "mypy", cache, *FLAGS, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)


def test_what_users_call_and_how_they_may_call_it(tmp_path: Path) -> None:
    files = [PACKAGE / name for name in PUBLIC]
    paths = [str(file if file.is_dir() else file.with_suffix(".py")) for file in files]
    user = tmp_path / "user.py"
    user.write_text(_USE)
    done = _mypy(*paths, str(user), cwd=tmp_path)
    (line,) = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert "user.py:9:" in line and '"htm"' in line, done.stdout + done.stderr


def test_the_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()
    assert 'gravure = ["py.typed"]' in (ROOT / "pyproject.toml").read_text()


def test_one_version() -> None:
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None and cited[1] == gravure.__version__
    project = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"' in project
    assert "gravure/version.py" in (ROOT / "tools/packaging/wheel_build.py").read_text()
    assert not re.search(r"^version = \"", project, re.MULTILINE)

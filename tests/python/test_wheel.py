"""The wheel: what Bazel puts into it, and that a Python that has torch needs nothing else.

Builds two more binaries than the other tests do, so it runs in .ci/run alone, or with
GRAVURE_TEST_WHEEL=1.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
NATIVE = {"libgravure.so", "gravure", "built_for.json"}
STEP = ROOT / "docs/examples/cpp_train/mlp"

pytestmark = pytest.mark.skipif(
    not (os.environ.get("CI") or os.environ.get("GRAVURE_TEST_WHEEL")),
    reason="set GRAVURE_TEST_WHEEL=1 to build the wheel",
)


def _run(command: Sequence[str | Path], **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)),
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("staged")
    _run([ROOT / "tools/packaging/stage", folder], GRAVURE_PYTHON=sys.executable)
    return folder


@pytest.fixture(scope="module")
def installed(staged: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site-packages with what the wheel holds, and no way back to the sources."""
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "python/gravure", site / "gravure")
    shutil.copy(ROOT / "python/gravure_native.py", site)
    for name in NATIVE:
        shutil.copy(staged / name, site / "gravure")
    return site


def test_what_is_staged_names_no_place_of_this_machine(staged: Path) -> None:
    assert {file.name for file in staged.iterdir()} == NATIVE
    for name in ("libgravure.so", "gravure"):
        dynamic = _run(["readelf", "--dynamic", staged / name])
        assert "libtorch_cpu.so" in dynamic
        assert "RUNPATH" not in dynamic and "RPATH" not in dynamic
        # Ubuntu 22.04's glibc and the libstdc++ of GCC 12 must do.
        symbols = _run(["readelf", "--dyn-syms", "--wide", staged / name])
        needed = {tuple(map(int, v.split("."))) for v in re.findall(r"@GLIBC_([\d.]+)", symbols)}
        assert max(needed) <= (2, 35)
        assert "GLIBCXX_3.4.31" not in symbols
        assert ".symtab" not in _run(["readelf", "--sections", "--wide", staged / name])
        assert str(ROOT).encode() not in (staged / name).read_bytes()
    record = json.loads((staged / "built_for.json").read_text())
    assert record == {"version": torch.__version__, "cuda": torch.version.cuda}


def test_the_command_runs(installed: Path) -> None:
    command = [sys.executable, "-m", "gravure_native"]
    printed = _run([*command, "run", STEP, "--verify", "--steps=4"], PYTHONPATH=str(installed))
    assert "every bit" in printed or "agree" in printed
    assert "partitions" in _run([*command, "plan", STEP], PYTHONPATH=str(installed))


def test_the_package_runs(installed: Path) -> None:
    script = """
import gravure, gravure_native, torch
assert gravure.__file__.startswith(__import__("sys").argv[1])
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 4))
compiled = torch.compile(model, backend="gravure")
for i in range(4):
    compiled(torch.ones(2, 4)).sum().backward()
    model.zero_grad()
assert gravure.report().graphs[0].programs[0].stats["replays"] > 0
print(gravure_native.library_path())
"""
    command = [sys.executable, "-c", script, installed]
    environment = {"PYTHONPATH": str(installed), "GRAVURE_LIBRARY": ""}
    assert _run(command, **environment).strip() == str(installed / "gravure/libgravure.so")


def test_the_wheel_holds_all_of_it(tmp_path: Path) -> None:
    # The environment's own setuptools may be older than the one that pip fetches for a build.
    pytest.importorskip("setuptools", "77")
    script = "import sys, wheel_build; print(wheel_build.build_wheel(sys.argv[1]))"
    command = [sys.executable, "-c", script, tmp_path]
    _run(command, PYTHONPATH="tools/packaging", GRAVURE_PYTHON=sys.executable)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        facts = archive.read(next(n for n in names if n.endswith("METADATA"))).decode()
        points = archive.read(next(n for n in names if n.endswith("entry_points.txt"))).decode()
        mode = archive.getinfo("gravure/gravure").external_attr >> 16
    release = ".".join(torch.__version__.split(".")[:2])
    assert f"+torch{release}-" in wheel.name
    assert f"Requires-Dist: torch=={release}.*" in facts
    sources = ROOT / "python"
    files = (sources / "gravure").rglob("*.py")
    modules = {str(file.relative_to(sources)) for file in files}
    assert modules | {f"gravure/{name}" for name in NATIVE} | {"gravure_native.py"} <= names
    assert "gravure = gravure.backend:compile_graph" in points
    assert "gravure = gravure_native:main" in points and mode & 0o111 == 0o111

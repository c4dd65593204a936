"""The sdist: who builds its C++, and that it brings all of LLVM that is used.

Its build takes as long as a first one of the C++: tools/sdist, then `pip install` of its file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import gravure_native
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "tools/packaging"


def _tree(folder: Path) -> Path:
    """What `stage` needs to decide, and builders that say that they ran."""
    for name in ("tools/environment.sh", "tools/packaging/stage", "third_party/find_torch.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    (folder / "tools/packaging/gxx_build.py").write_text("import sys; print('g++ to', sys.argv[1])")
    return folder


def _commands(folder: Path, *names: str) -> str:
    """A PATH with the system's plain commands, and these."""
    folder.mkdir()
    for name in "bash dirname env mkdir sort nproc awk sha256sum cut install".split():
        found = shutil.which(name)
        assert found, name
        (folder / name).symlink_to(found)
    for name in names:
        (folder / name).write_text(f"#!/bin/sh\necho ran {name} $*\nexit 1\n")
        (folder / name).chmod(0o755)
    return str(folder)


def _stage(tree: Path, path: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PATH": path,
        "GRAVURE_PYTHON": sys.executable,
        "GRAVURE_CACHE": str(tree / "cache"),
    }
    command = [str(tree / "tools/packaging/stage"), "to"]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_an_sdist_is_built_by_gxx_alone(tmp_path: Path) -> None:
    tree = _tree(tmp_path / "tree")
    (tree / "third_party/llvm").mkdir()
    path = _commands(tmp_path / "bin", "g++", "bazel", "llvm-config-19")
    assert _stage(tree, path).stdout == "g++ to to\n"


def test_a_checkout_is_built_by_bazel_where_there_is_one(tmp_path: Path) -> None:
    tree = _tree(tmp_path / "tree")
    done = _stage(tree, _commands(tmp_path / "bin", "g++", "bazel", "llvm-config-19"))
    assert "ran bazel" in done.stdout and "g++ to" not in done.stdout
    done = _stage(tree, _commands(tmp_path / "without", "g++", "llvm-config-19"))
    assert done.stdout == "g++ to to\n"


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (["bazel", "llvm-config-19"], "needs g++"),
        (["g++", "bazel"], "llvm-config-19"),
        (["g++"], "LLVM 19"),
    ],
)
def test_what_is_missing_is_named(there: list[str], said: str, tmp_path: Path) -> None:
    done = _stage(_tree(tmp_path / "tree"), _commands(tmp_path / "bin", *there))
    assert done.returncode == 1 and said in done.stderr


def test_an_sdist_brings_what_a_link_takes_of_llvm(tmp_path: Path) -> None:
    built = gravure_native._outputs()
    rooms = ("ir", "passes", "runtime", "python", "tools")
    objects = [str(o) for room in rooms for o in (built / room).glob("**/_objs/**/*.pic.o")]
    config = shutil.which("llvm-config-19")
    if not objects or config is None:
        pytest.skip("needs what tools/build leaves, and LLVM's archive")
    library = subprocess.check_output([config, "--libdir"], text=True).strip()
    archives = [f"{library}/libLLVM{name}.a" for name in ("Support", "Demangle")]
    command = ["g++", "-shared", "-o", str(tmp_path / "x.so"), "-Wl,-M", *objects, *archives]
    members = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    taken = set(re.findall(r"^\S*libLLVM\w+\.a\((\w+\.cpp)\.o\)", members, re.MULTILINE))
    lines = (PACKAGING / "llvm_sources.txt").read_text().splitlines()
    assert taken <= {Path(line).name for line in lines if not line.startswith("#")}
    assert "raw_ostream.cpp" in taken

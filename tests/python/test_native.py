"""A torch that the C++ was not built for is refused by name, wherever it is met first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import gravure_native
import pytest
from gravure_native import Torch, mismatch

PYTHON = Path(gravure_native.__file__).parent
BUILT = Torch("2.11.0+cu130", "13.0")
BUILT_WITH_CUDA = ["torch 2.11 with CUDA 13", "pip install ."]


@pytest.mark.parametrize(
    ("found", "built", "said"),
    [
        (Torch("2.11.0+cu130", "13.0"), BUILT, []),
        (Torch("2.11.1+cu132", "13.2"), BUILT, []),  # one CUDA runtime serves both
        (Torch("2.11.0+cu130", "13.0"), Torch("2.11.0+cpu", None), []),
        (Torch("2.11.0", None), None, []),  # nobody recorded what it was built for
        (Torch("2.12.0+cu130", "13.0"), BUILT, ["2.11.0+cu130", "2.12.0", "torch==2.11.*"]),
        (Torch("2.15.0", None), None, []),
        (Torch("2.10.0+cpu", None), None, ["torch 2.11 to 2.15", "2.10.0+cpu", "torch==2.15.*"]),
        (Torch("2.16.0+cpu", None), None, ["torch 2.11 to 2.15", "2.16.0+cpu", "torch==2.15.*"]),
        (Torch("2.11.0+cpu", None), Torch("2.15.0+cpu", None), ["torch==2.15.*"]),
        (Torch("2.11.0+cu126", "12.6"), BUILT, ["CUDA 12.6", *BUILT_WITH_CUDA]),
        (Torch("2.11.0+cpu", None), BUILT, ["without CUDA", *BUILT_WITH_CUDA]),
    ],
)
def test_what_runs_with_what(found: Torch, built: Torch | None, said: list[str]) -> None:
    problem = mismatch(found, built)
    assert bool(problem) == bool(said)
    assert all(part in problem for part in said)


def _run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = {"PYTHONPATH": str(PYTHON)}
    return subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | path | environment,
        capture_output=True,
        text=True,
    )


def test_import_names_both_releases_and_the_remedy() -> None:
    done = _run("import torch; torch.__version__ = '2.10.1+cu130'; import gravure")
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith("ImportError: gravure is made for torch 2.11 to 2.15")
    assert "torch 2.10.1+cu130" in last and "pip install 'torch==2.15.*'" in last


def test_a_library_that_was_built_for_another_torch_is_not_loaded(tmp_path: Path) -> None:
    library = tmp_path / "libgravure.so"
    library.write_bytes(b"no library")
    record = {"version": "2.11.0+cu999", "cuda": "999.0"}
    (tmp_path / "built_for.json").write_text(json.dumps(record))
    script = (
        "from gravure.library.load import program_class\n"
        "try: program_class()\n"
        "except ImportError as e: print(e)"
    )
    assert "built for torch 2.11.0+cu999" in _run(script, GRAVURE_LIBRARY=str(library)).stdout
    (tmp_path / "built_for.json").unlink()
    said = _run(script, GRAVURE_LIBRARY=str(library)).stdout
    assert "does not load with torch" in said and "build it anew" in said


def test_the_command_refuses_another_torch(tmp_path: Path) -> None:
    tool = tmp_path / "gravure"
    tool.write_text("#!/bin/sh\necho ran $1 with $LD_LIBRARY_PATH\n")
    tool.chmod(0o755)
    script = "import sys, gravure_native; sys.argv = ['gravure', 'opt']; gravure_native.main()"
    done = _run(script, GRAVURE_TOOL=str(tool))
    assert done.stdout.startswith("ran opt with ") and "torch/lib" in done.stdout
    record = {"version": "2.12.0+cpu", "cuda": None}
    (tmp_path / "built_for.json").write_text(json.dumps(record))
    done = _run(script, GRAVURE_TOOL=str(tool))
    assert done.returncode == 1 and done.stderr.startswith("gravure: gravure was built for torch")
    done = _run(script, GRAVURE_TOOL=str(tmp_path / "none"))
    assert done.returncode == 1 and "not a file" in done.stderr


def test_the_command_does_not_import_torch() -> None:
    done = _run("import gravure_native, sys; print('torch' in sys.modules)")
    assert done.stdout.strip() == "False"


REGISTERED = """
import torch
{first}
assert torch._dynamo.list_backends().count("gravure") == 1
compiled = torch.compile(torch.nn.Linear(2, 2), backend="gravure")
import gravure
compiled = torch.compile(torch.nn.Linear(2, 2), backend="gravure")
compiled = torch.compile(torch.nn.Linear(2, 2), backend=gravure.compile_graph)
print("fine")
"""


def test_the_source_tree_registers_the_backend() -> None:
    done = _run(REGISTERED.format(first="import gravure"))
    assert done.stdout == "fine\n", done.stderr


def test_an_installed_entry_point_is_enough(tmp_path: Path) -> None:
    facts = tmp_path / "gravure-0.1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: gravure\nVersion: 0.1.0\n")
    pyproject = (PYTHON.parent / "pyproject.toml").read_text()
    group = "[project.entry-points.torch_dynamo_backends]\n"
    line = pyproject.split(group)[1].splitlines()[0].replace('"', "")
    (facts / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{line}\n")
    for first in ("", "import gravure"):
        done = _run(REGISTERED.format(first=first), PYTHONPATH=f"{tmp_path}:{PYTHON}")
        assert done.stdout == "fine\n", done.stderr


def test_the_default_release_is_one_everywhere() -> None:
    """tools/build leaves plain bazel-bin for it, and `import gravure` looks there."""
    said = {
        "tools/environment.sh": f"\ndefault_release={gravure_native.DEFAULT}\n",
        "third_party/torch.bzl": f'\n_DEFAULT_RELEASE = "{gravure_native.DEFAULT}"\n',
    }
    for file, line in said.items():
        assert line in (PYTHON.parent / file).read_text(), file
    assert gravure_native.DEFAULT == gravure_native.SUPPORTED[-1]

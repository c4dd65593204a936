"""Builds the wheel: setuptools for what is Python, `stage` for what is C++ (PEP 517's backend).

The C++ is built for the torch of the environment that pip installs into. pip runs this in an
environment of its own, where torch is not seen, but with that environment's interpreter.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import setuptools
from setuptools import Distribution, build_meta
from setuptools.build_meta import (  # noqa: F401
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    raise SystemExit(
        f"gravure: setuptools {setuptools.__version__} is too old to build the wheel: "
        "pip install 'setuptools>=77', or leave out --no-build-isolation"
    ) from None

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "python"))
from gravure_native import DEFAULT, SUPPORTED  # noqa: E402

# Of Gravure; a wheel's also says which torch it is for: 0.2.0+torch2.11. Importing it needs torch.
VERSION = runpy.run_path(str(ROOT / "python/gravure/version.py"))["__version__"]
PLOTLY = "plotly>=6"  # draws the report's page
NATIVE = ("libgravure.so", "gravure", "built_for.json")


class Interpreter:
    """One that may have a torch to build for, and what was found in it."""

    def __init__(self, python: str, environment: dict[str, str]) -> None:
        self.python = python
        self.environment = environment
        command = [python, str(ROOT / "third_party/find_torch.py")]
        try:
            asked = subprocess.check_output(command, env=environment)
            self.found: dict[str, Any] = json.loads(asked)
        except (OSError, subprocess.CalledProcessError) as error:
            self.found = {"problem": f"{python} cannot be asked for its torch: {error}"}

    @property
    def release(self) -> str:
        """Of its torch: `2.11`. "" without one."""
        return ".".join(str(self.found.get("version", "")).split(".")[:2])

    @property
    def packages(self) -> list[str]:
        """Those whose CUDA headers torch's own need, and that are missing."""
        return str(self.found.get("packages", "")).split()

    def problem(self) -> str:
        """Why its torch cannot be built for; "" if it can."""
        if "problem" in self.found:
            return str(self.found["problem"])
        if self.release not in SUPPORTED:
            return f"{self.python} has torch {self.found['version']}"
        if self.packages:
            return f"beside the torch of {self.python}, CUDA headers are missing"
        return ""


def candidates() -> Iterator[Interpreter]:
    """Interpreters in the order in which they are asked for torch."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    named = os.environ.get("GRAVURE_PYTHON")
    if named:
        yield Interpreter(named, plain)
        return
    cuda = _own_cuda_headers()
    if cuda:
        plain["CUDA_HOME"] = cuda
    yield Interpreter(sys.executable, plain)
    active = Path(os.environ.get("VIRTUAL_ENV", ""), "bin/python")
    if active.is_file():
        yield Interpreter(str(active), plain)
    yield Interpreter(sys.executable, dict(os.environ))  # torch among what the build asked for


def _own_cuda_headers() -> str:
    """The CUDA folder in the build's own environment, if it asked for headers."""
    folders = (folder for path in sys.path for folder in sorted(Path(path).glob("nvidia/cu*")))
    return next((str(f) for f in folders if (f / "include/crt/host_defines.h").is_file()), "")


def interpreter() -> Interpreter:
    """The one to build for. Exits with what is missing, and how to get it."""
    problems = []
    for candidate in candidates():
        problem = candidate.problem()
        if not problem:
            return candidate
        if problem not in problems:
            problems.append(problem)
        if candidate.packages:
            break  # the torch to build for: no other one is taken instead
    wanted = " ".join(f"'{pin}'" for pin in _pins(_wanted_release()))
    raise SystemExit(
        f"gravure: there is no torch {SUPPORTED[0]} to {SUPPORTED[-1]} to build for: "
        f"{'; '.join(problems)}. Install one "
        f"into the environment that gravure goes into (pip install {wanted}), or name an "
        "interpreter that has it in GRAVURE_PYTHON."
    )


def _wanted_release() -> str:
    """The release to build for where nobody has a torch."""
    return os.environ.get("GRAVURE_TORCH_RELEASE", DEFAULT)


def _pins(release: str, *names: str) -> list[str]:
    """Of torch and the headers that it needs to be built with, these (all), with their versions."""
    lines = (ROOT / f"requirements/torch-{release}.txt").read_text().splitlines()
    pins = {re.split(r"[=<>~]", line)[0]: line for line in lines if re.match(r"[a-z]", line)}
    wanted = names or [name for name in pins if name == "torch" or name.startswith("nvidia-")]
    return [pins[name] for name in wanted if name in pins]


def _release() -> str:
    """The release that is built for, or would be once torch is there."""
    found = (candidate.release for candidate in candidates() if candidate.release in SUPPORTED)
    return next(found, _wanted_release())


def version(sources: bool) -> str:
    """Gravure's, and in a wheel which torch it is for."""
    return VERSION if sources else f"{VERSION}+torch{_release()}"


def dependencies(sources: bool) -> list[str]:
    """A wheel runs with one release of torch; sources can be built for any that is supported."""
    if sources:
        return [f"torch>={SUPPORTED[0]},<{_next(SUPPORTED[-1])}", PLOTLY]
    return [f"torch=={_release()}.*", PLOTLY]


def _next(release: str) -> str:
    major, minor = release.split(".")
    return f"{major}.{int(minor) + 1}"


def get_requires_for_build_wheel(settings: Any = None) -> list[str]:
    """torch itself, where nobody has one; headers that its own wheels do not bring."""
    found = build_meta.get_requires_for_build_wheel(settings)
    for candidate in candidates():
        if candidate.packages:
            return found + _pins(candidate.release, *candidate.packages)
        if not candidate.problem():
            return found
    named = "GRAVURE_PYTHON" in os.environ  # a named one without torch is an error, told later
    return found if named else found + _pins(_wanted_release())


get_requires_for_build_editable = get_requires_for_build_wheel


def stage(folder: Path, command: str = "tools/packaging/stage") -> None:
    """What is C++ in the wheel, into `folder`. Exits with what is missing."""
    chosen = interpreter()
    print(f"gravure: building for torch {chosen.found['version']} of {chosen.python}", flush=True)
    environment = chosen.environment | {
        "GRAVURE_PYTHON": chosen.python,
        "GRAVURE_TORCH_RELEASE": chosen.release,
    }
    done = subprocess.run([str(ROOT / command), str(folder)], env=environment)
    if done.returncode != 0:
        raise SystemExit("gravure: the C++ was not built; the reason is above")


class BuildPy(build_py):
    """The Python files, and beside them what is built of C++."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)  # modules that are gone stay gone
        super().run()
        if not self.editable_mode:  # there, what tools/build left in bazel-bin is found
            stage(Path(self.build_lib, "gravure"))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        native = [] if self.editable_mode else [f"{self.build_lib}/gravure/{n}" for n in NATIVE]
        return super().get_outputs(include_bytecode) + native


class BdistWheel(bdist_wheel):
    """One wheel for every Python 3: no file in it uses a header of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class NativeDistribution(Distribution):
    """Holds binaries, though none that setuptools compiles."""

    def has_ext_modules(self) -> bool:
        return True


COMMANDS = {"build_py": BuildPy, "bdist_wheel": BdistWheel}

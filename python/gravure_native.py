"""What is built in C++: where it lies, and for which torch it was built.

A module of its own, since `import gravure` imports torch, and the command `gravure` must not wait.
"""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple, NoReturn

LIBRARY = "libgravure.so"
TOOL = "gravure"
BUILT_FOR = "built_for.json"

_SOURCES = Path(__file__).resolve().parents[1]  # in a source tree
PACKAGE = Path(__file__).resolve().parent / "gravure"


class Torch(NamedTuple):
    """A release of PyTorch: `2.11.0+cu130`, and the CUDA it was built with, None without."""

    version: str
    cuda: str | None

    @property
    def release(self) -> str:
        return ".".join(self.version.split(".")[:2])

    def __str__(self) -> str:
        return f"torch {self.version} ({f'CUDA {self.cuda}' if self.cuda else 'without CUDA'})"


# What the Python files are written for, the oldest first; what the C++ was built for is beside it.
SUPPORTED = ("2.11", "2.12", "2.13", "2.14", "2.15")
# Where tools/build leaves what it builds for it in plain `bazel-bin` (tools/environment.sh).
DEFAULT = "2.15"


def built_for(folder: Path) -> Torch | None:
    """The torch that the library in `folder` was built for; None where nobody recorded it."""
    record = folder / BUILT_FOR
    return Torch(**json.loads(record.read_text())) if record.is_file() else None


def mismatch(found: Torch, built: Torch | None) -> str:
    """Why a build for `built` does not run with torch `found`, and what to do; "" if it does."""
    if built is None and found.release not in SUPPORTED:
        return (
            f"gravure is made for torch {SUPPORTED[0]} to {SUPPORTED[-1]}, and this is {found}: "
            f"pip install 'torch=={SUPPORTED[-1]}.*'"
        )
    if built is not None and found.release != built.release:
        return (
            f"gravure was built for {built}, and this is {found}: "
            f"pip install 'torch=={built.release}.*', or a gravure that was built for torch "
            f"{found.release}"
        )
    # Without CUDA it runs everywhere. With it, the library is linked with one CUDA runtime.
    if built is not None and built.cuda and _major(found.cuda) != _major(built.cuda):
        return (
            f"gravure was built for {built}, and this is {found}: install a torch {built.release} "
            f"with CUDA {_major(built.cuda)}, or build gravure for this one, with `pip install .` "
            "in its sources"
        )
    return ""


def _major(version: str | None) -> str:
    return (version or "").split(".")[0]


def library_path() -> Path:
    """The C++ library: named by GRAVURE_LIBRARY, beside this package, or as Bazel built it."""
    return _find(LIBRARY, "GRAVURE_LIBRARY", "python")


def tool_path() -> Path:
    """The command-line tool, found in the same way; GRAVURE_TOOL names another one."""
    return _find(TOOL, "GRAVURE_TOOL", "tools")


def _outputs() -> Path:
    """Where tools/build leaves what it builds for the installed torch."""
    try:
        release = installed_torch().release
    except ImportError:
        release = DEFAULT
    return _SOURCES / ("bazel-bin" if release == DEFAULT else f"bazel-{release}/bin")


def _find(name: str, variable: str, room: str) -> Path:
    named = os.environ.get(variable)
    if named:
        if not Path(named).is_file():
            raise FileNotFoundError(f"{variable} names {named}, which is not a file")
        return Path(named)
    places = (PACKAGE / name, _outputs() / room / name)
    for place in places:
        if place.is_file():
            return place
    raise FileNotFoundError(
        f"{name} is at none of {', '.join(map(str, places))}; "
        f"build it with tools/build, or name it in {variable}"
    )


def main() -> NoReturn:
    """The command `gravure`: becomes the tool, which finds the libraries of the installed torch."""
    try:
        tool = tool_path()
        problem = mismatch(installed_torch(), built_for(tool.parent))
        if problem:
            raise ImportError(problem)
    except (FileNotFoundError, ImportError) as error:
        sys.exit(f"gravure: {error}")
    arguments, page = _without_page(sys.argv[1:])
    if page is not None:
        sys.exit(_plan_page(tool, arguments, page))
    os.execve(tool, [str(tool), *sys.argv[1:]], tool_environment())


def _without_page(arguments: list[str]) -> tuple[list[str], str | None]:
    """What the tool is given of `gravure plan PATH --html FILE`, and FILE; None without one."""
    for i, argument in enumerate(arguments):
        if arguments[0] != "plan" or argument.lstrip("-").partition("=")[0] != "html":
            continue
        if not argument.startswith("-"):
            continue
        _, equals, file = argument.partition("=")
        rest = arguments[i + 1 :]
        if not equals:
            file, rest = (rest or [""])[0], rest[1:]
        if not file:
            break  # the tool says what is missing
        return [*arguments[:i], *rest], file
    return arguments, None


def _plan_page(tool: Path, arguments: list[str], file: str) -> int | str:
    """Has the tool plan, and draws what it says. Returns an exit status, or what is wrong."""
    command = [str(tool), *arguments, "--detail"]
    planned = subprocess.run(command, stdout=subprocess.PIPE, env=tool_environment())
    if planned.returncode != 0:
        return planned.returncode
    from gravure.page.plan import write_plan  # imports torch, which takes a while

    try:
        write_plan(file, json.loads(planned.stdout))
    except (OSError, ImportError) as error:
        return f"gravure: {error}"
    print(f"written to {file}")
    return 0


def tool_environment() -> dict[str, str]:
    """The process's own, with the libraries of the installed torch where the tool finds them."""
    folder = _torch_folder()
    libraries = [folder / "lib", *sorted(folder.parent.glob("nvidia/*/lib"))]
    former = os.environ.get("LD_LIBRARY_PATH")
    places = [*map(str, libraries), *([former] if former else [])]
    return os.environ | {"LD_LIBRARY_PATH": ":".join(places)}


def installed_torch() -> Torch:
    """What `import torch` would find; ImportError where that is nothing. torch is not imported."""
    facts = runpy.run_path(str(_torch_folder() / "version.py"))
    return Torch(facts["__version__"], facts["cuda"])


def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(
            f"{sys.executable} has no torch, whose libraries the tool needs: "
            f"pip install 'torch=={SUPPORTED[-1]}.*'"
        )
    return Path(next(iter(spec.submodule_search_locations)))


if __name__ == "__main__":
    main()

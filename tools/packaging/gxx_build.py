"""Builds what is C++ in the wheel with g++ alone: where there is no Bazel, as beside an sdist.

    python tools/packaging/gxx_build.py FOLDER

Puts into FOLDER what `stage` puts there. It takes all the files of the layers, with the flags of
Bazel's build; the rooms, and who may use whom, are looked after by Bazel. The torch is the running
interpreter's. LLVM is third_party/llvm, which an sdist brings (tools/sdist), or else the system's.

Most of a file's time goes into torch's headers, so they are compiled once, ahead of all files.
GRAVURE_OBJECTS names a folder where objects are kept: what has not changed is not compiled again,
by the same compiler for the same torch.
GRAVURE_JOBS is how many files are compiled at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("ir", "passes", "runtime")
FLAGS = (
    "-std=c++20 -O2 -g0 -DNDEBUG -fPIC -Wall -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=1 "
    "-fstack-protector -ffunction-sections -fdata-sections -fno-canonical-system-headers "
    "-D__DATE__= -D__TIME__= -Wno-builtin-macro-redefined"
)
LINK = "-Wl,--no-as-needed -Wl,-z,relro,-z,now -Wl,--gc-sections -Wl,--strip-all"
# Ahead of every file. What few files include stays out: reading it costs more than it saves.
COMMON = """\
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/StringMap.h>
#include <llvm/Support/raw_ostream.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/library.h>
"""
MEMORY_A_FILE = 2 << 30


@dataclass
class Llvm:
    """ADT and Support: an archive, or the sources of one."""

    include: Path
    archives: list[Path]
    sources: list[Path]


def find_llvm() -> Llvm:
    own = ROOT / "third_party/llvm"
    if own.is_dir():
        return Llvm(own / "include", [], sorted(own.glob("lib/*/*.cpp")))
    config = shutil.which("llvm-config-19")
    if config is None:
        raise SystemExit(
            "gravure: there are no sources of LLVM in third_party/llvm (an sdist has them) and no "
            "llvm-config-19: build from an sdist, or install llvm-19-dev"
        )
    asked = subprocess.check_output([config, "--includedir", "--libdir"], text=True)
    include, library = map(Path, asked.split())
    names = ("libLLVMSupport.a", "libLLVMDemangle.a")
    return Llvm(include, [library / name for name in names], [])


def find_torch() -> dict[str, str]:
    command = [sys.executable, str(ROOT / "third_party/find_torch.py")]
    found: dict[str, str] = json.loads(subprocess.check_output(command))
    if "problem" in found:
        raise SystemExit(f"gravure: no libtorch to build with: {found['problem']}")
    if "no_cuda" in found:
        print(f"gravure: the CUDA device is left out: {found['no_cuda']}", flush=True)
    return found


def sources(folder: str, has_cuda: bool) -> list[Path]:
    """All of a layer, without CUDA's where there is none."""
    files = sorted((ROOT / folder).rglob("*.cpp"))
    device = ROOT / "runtime/cuda"
    return [f for f in files if has_cuda or f.parent != device or f.name == "no_cuda.cpp"]


class Build:
    """One build, whose objects lie below `objects`."""

    def __init__(self, objects: Path) -> None:
        self.torch = find_torch()
        self.llvm = find_llvm()
        self.has_cuda = "cuda" in self.torch
        self.compiler = shlex.split(os.environ.get("CXX", "g++"))
        # What objects depend on besides files, at which alone _is_newest looks.
        made_with = json.dumps([self.compiler, FLAGS, self.torch, str(self.llvm.include)])
        self.objects = objects / hashlib.sha256(made_with.encode()).hexdigest()[:16]
        self.pool = ThreadPoolExecutor(_jobs())

    def run(self, folder: Path) -> None:
        shared = [file for layer in LAYERS for file in sources(layer, self.has_cuda)]
        shared.append(ROOT / "third_party/arc4random.cpp")
        objects = self._compile(shared, "")
        library = self._compile(sources("python/csrc", self.has_cuda), "-fvisibility=hidden")
        tool = self._compile(sources("tools/gravure", self.has_cuda), "")
        archives = self.llvm.archives or [self._archive()]
        folder.mkdir(parents=True, exist_ok=True)
        hidden = ["-shared", "-Wl,--exclude-libs,ALL"]
        self._link(folder / "libgravure.so", [*objects, *library], archives, hidden)
        self._link(folder / "gravure", [*objects, *tool], archives, [])
        record = {
            "version": self.torch["version"],
            "cuda": self.torch["cuda_version"] if self.has_cuda else None,
        }
        (folder / "built_for.json").write_text(json.dumps(record) + "\n")

    def _flags(self) -> Iterator[str]:
        yield from FLAGS.split()
        include = self.torch["include"]
        system = [include, f"{include}/torch/csrc/api/include", str(self.llvm.include)]
        if self.has_cuda:
            yield "-DGRAVURE_HAS_CUDA=1"
            system += [self.torch["cuda"], str(self._gathered())]
            if "nccl" in self.torch:
                yield "-DUSE_C10D_NCCL"
        for folder in system:
            yield from ("-isystem", folder)
        yield f"-I{ROOT}"

    def _gathered(self) -> Path:
        """The headers that CUDA's include and that lie elsewhere."""
        folder = self.objects / "include"
        folder.mkdir(parents=True, exist_ok=True)
        for key, name in (("crt", "crt"), ("nv", "nv"), ("nccl", "nccl.h")):
            link = folder / name
            if key in self.torch and not link.is_symlink():
                link.symlink_to(self.torch[key])
        return folder

    def _compile(self, files: list[Path], visibility: str) -> list[Path]:
        flags = [*self._flags(), *visibility.split()]
        folder = self.objects / ("hidden" if visibility else "plain")
        header = folder / "common.h"
        folder.mkdir(parents=True, exist_ok=True)
        if not header.is_file() or header.read_text() != COMMON:
            header.write_text(COMMON)
        self._compile_one(header, header.with_name("common.h.gch"), flags)
        ahead = [*flags, "-include", str(header)]

        def compile_one(file: Path) -> Path:
            to = folder / file.relative_to(ROOT).with_suffix(".o")
            self._compile_one(file, to, ahead)
            return to

        return list(self.pool.map(compile_one, files))

    def _archive(self) -> Path:
        """LLVM's own, of its sources; as an archive, so that a link takes what it needs of them."""
        flags = [*FLAGS.split(), "-w", f"-I{self.llvm.include}", "-fvisibility=hidden"]
        base = ROOT / "third_party/llvm"

        def compile_one(file: Path) -> Path:
            to = self.objects / "llvm" / file.relative_to(base).with_suffix(".o")
            self._compile_one(file, to, flags)
            return to

        made = list(self.pool.map(compile_one, self.llvm.sources))
        archive = self.objects / "libLLVMSupport.a"
        archive.unlink(missing_ok=True)
        _call(["ar", "qc", str(archive), *map(str, made)])
        return archive

    def _compile_one(self, file: Path, to: Path, flags: list[str]) -> None:
        if _is_newest(to):
            return
        to.parent.mkdir(parents=True, exist_ok=True)
        language = ["-x", "c++-header"] if file.suffix == ".h" else ["-c"]
        partial = to.with_name(f"{to.name}.partial")
        depends = ["-MD", "-MF", f"{to}.d", "-MT", "object"]
        _call([*self.compiler, *flags, *depends, *language, str(file), "-o", str(partial)])
        partial.replace(to)

    def _link(self, to: Path, objects: list[Path], archives: list[Path], flags: list[str]) -> None:
        libraries = [f"-L{self.torch['lib']}", "-ltorch_cpu", "-lc10"]
        if self.has_cuda:
            cudart = Path(self.torch["cudart"])
            libraries += ["-ltorch_cuda", "-lc10_cuda", f"-l:{cudart.name}", f"-L{cudart.parent}"]
        command = [*self.compiler, *LINK.split(), *flags, *map(str, objects)]
        command += [*map(str, archives), *libraries, "-ldl", "-lm", "-lpthread"]
        # Those of CUDA that torch's libraries ask for are looked up when it is loaded.
        _call([*command, "-Wl,--allow-shlib-undefined", "-o", str(to)])


def _is_newest(made: Path) -> bool:
    """Whether nothing that `made` was made from has changed since."""
    listed = made.with_name(f"{made.name}.d")
    if not made.is_file() or not listed.is_file():
        return False
    text = listed.read_text().partition(":")[2].replace("\\\n", " ")
    when = made.stat().st_mtime
    return all(Path(f).is_file() and Path(f).stat().st_mtime <= when for f in text.split())


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"gravure: this failed: {shlex.join(command)}\n{done.stdout}{done.stderr}")
    sys.stderr.write(done.stderr)


def _jobs() -> int:
    """A file takes up to 2 GiB of memory."""
    named = os.environ.get("GRAVURE_JOBS")
    if named:
        return int(named)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(len(os.sched_getaffinity(0)), free // MEMORY_A_FILE))


def main() -> None:
    kept = os.environ.get("GRAVURE_OBJECTS")
    with tempfile.TemporaryDirectory(prefix="gravure-build-") as scratch:
        Build(Path(kept or scratch).resolve()).run(Path(sys.argv[1]))


if __name__ == "__main__":
    main()

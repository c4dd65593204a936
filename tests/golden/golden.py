"""Runs golden files: programs whose `# RUN:` lines say what to run, and what is expected of it.

    python3 golden.py --tool PATH [--root FOLDER] [--update] [FILE...]

A golden is a `.gv` file. Its RUN lines are commands for bash, run in the file's own folder, where
`gravure` and `FileCheck` are programs, `not COMMAND` expects COMMAND to exit with an error, `%s` is
the file and `%t` a name for a temporary one. Two kinds:

    a RUN line with FileCheck      FileCheck compares, with the CHECK lines of the file
    a file X.gv.expected beside    the output of all RUN lines is compared with it, whole

A `.gv` file that checks nothing fails, and so does a file that no golden reads. The last line is
`N passed, N failed`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

_RUN = re.compile(r"^\s*#\s*RUN:\s*(.*)$", re.M)
_TIMEOUT_S = 120
_SUFFIX = ".expected"


@dataclass
class Golden:
    """One file and what became of it; `problems` is empty where it passed."""

    file: Path
    commands: list[str]
    problems: list[str] = field(default_factory=list)
    output: str = ""

    @property
    def expected(self) -> Path:
        return self.file.with_name(self.file.name + _SUFFIX)

    @property
    def uses_filecheck(self) -> bool:
        return any(re.search(r"\bFileCheck\b", command) for command in self.commands)


def read_golden(file: Path) -> Golden:
    text = file.read_text().replace("\\\n#", " ")  # a RUN line may go on in the next comment
    golden = Golden(file, _RUN.findall(text))
    if not golden.commands:
        golden.problems.append("has no RUN line")
    elif not golden.uses_filecheck and not golden.expected.exists():
        golden.problems.append(f"checks nothing: no FileCheck, no {golden.expected.name}")
    return golden


def run_golden(golden: Golden, programs: Path, *, update: bool) -> Golden:
    if golden.commands and not golden.uses_filecheck and update:
        golden.problems.clear()  # the expected output is about to be written
    if golden.problems:
        return golden
    with tempfile.TemporaryDirectory() as scratch:
        for command in golden.commands:
            _run_command(golden, command, programs, Path(scratch))
    if not golden.problems and golden.expected.exists() or update and not golden.uses_filecheck:
        _compare(golden, update=update)
    return golden


def _run_command(golden: Golden, command: str, programs: Path, scratch: Path) -> None:
    line = command.replace("%s", golden.file.name).replace("%t", str(scratch / golden.file.stem))
    environment = dict(os.environ, PATH=f"{programs}:{os.environ.get('PATH', '')}")
    script = f'set -o pipefail; not() {{ ! "$@"; }}; {line}'
    try:
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=golden.file.parent,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        golden.problems.append(f"{line}\nran for more than {_TIMEOUT_S} s")
        return
    golden.output += done.stdout
    if done.returncode != 0:
        said = (done.stderr or done.stdout).rstrip()
        golden.problems.append(f"{line}\nexit status {done.returncode}\n{said}")


def _compare(golden: Golden, *, update: bool) -> None:
    if golden.problems:
        return
    before = golden.expected.read_text() if golden.expected.exists() else ""
    if golden.output == before:
        return
    difference = "".join(
        difflib.unified_diff(
            before.splitlines(keepends=True),
            golden.output.splitlines(keepends=True),
            golden.expected.name,
            "output",
        )
    )
    if update:
        golden.expected.write_text(golden.output)
        print(f"updated {golden.expected}\n{difference}", end="")
    else:
        golden.problems.append(f"the output is not what {golden.expected.name} says\n{difference}")


def orphans(root: Path, goldens: list[Golden]) -> list[Path]:
    """Files in golden folders that no golden is made of, and no RUN line names."""
    known = {golden.file for golden in goldens} | {golden.expected for golden in goldens}
    for golden in goldens:
        for word in re.findall(r"[\w./-]+", "\n".join(golden.commands)):
            known.add(Path(os.path.normpath(golden.file.parent / word)))
    files = (f for f in root.rglob("*") if f.is_file() and f.parent != root)
    return sorted(f for f in files if f not in known and "__pycache__" not in f.parts)


def find_filecheck() -> str:
    for name in ("FileCheck-19", "/usr/lib/llvm-19/bin/FileCheck", "FileCheck"):
        if found := shutil.which(name):
            return found
    sys.exit("golden: there is no FileCheck; run tools/setup, or install llvm-19-tools")


def run_all(tool: Path, root: Path, files: list[Path], *, update: bool) -> int:
    goldens = [read_golden(file) for file in (files or sorted(root.rglob("*.gv")))]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        programs = Path(folder)
        (programs / "gravure").symlink_to(tool)
        (programs / "FileCheck").symlink_to(find_filecheck())
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            runs = pool.map(lambda g: run_golden(g, programs, update=update), goldens)
            for golden in runs:
                failed += bool(golden.problems)
                for problem in golden.problems:
                    print(f"FAILED {os.path.relpath(golden.file, root)}: {problem}\n")
    passed = len(goldens) - failed
    for stray in [] if files else orphans(root, goldens):
        print(f"FAILED {stray.relative_to(root)}: no golden reads it\n")
        failed += 1
    if not goldens:
        print(f"FAILED {root}: there is no golden")
        failed += 1
    print(f"{passed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", type=Path, required=True, help="the program gravure")
    parser.add_argument("--root", type=Path, default=Path(__file__).parent, help="golden folders")
    parser.add_argument("--update", action="store_true", help="rewrite the .expected files")
    parser.add_argument("files", type=Path, nargs="*", help="goldens to run (default: all)")
    options = parser.parse_args()
    if options.update and os.environ.get("CI"):
        print("golden: goldens are not updated where CI is set", file=sys.stderr)
        return 2
    root, files = options.root.absolute(), [file.absolute() for file in options.files]
    return run_all(options.tool.absolute(), root, files, update=options.update)


if __name__ == "__main__":
    sys.exit(main())

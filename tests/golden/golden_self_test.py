"""The golden driver notices what is wrong: each case damages a copy of the goldens and runs it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

_PROGRAM = """gravure 1
graph step(%x : Float(2, device=cpu) {user_input "x"}):
  return (%x {alias %x})
"""

# What stands in for the tool: it prints its last argument's lines that are no comments.
_TOOL = """#!/bin/bash
grep -v '^#' "${@: -1}"
"""

_CHECKED = _PROGRAM + "# RUN: gravure opt %s | FileCheck %s\n# CHECK: graph step\n"
_WHOLE = _PROGRAM + "# RUN: gravure opt %s\n"


def make(folder: Path) -> None:
    """Two goldens that pass, one of each kind."""
    (folder / "pass").mkdir()
    (folder / "pass/checked.gv").write_text(_CHECKED)
    (folder / "pass/whole.gv").write_text(_WHOLE)
    (folder / "pass/whole.gv.expected").write_text(_PROGRAM)


def damage_check(folder: Path) -> None:
    file = folder / "pass/checked.gv"
    file.write_text(file.read_text().replace("CHECK: graph step", "CHECK: graph stop"))


def damage_whole(folder: Path) -> None:
    file = folder / "pass/whole.gv.expected"
    file.write_text(file.read_text().replace("%x", "%y", 1))


def damage_program(folder: Path) -> None:
    (folder / "pass/whole.gv").write_text(_WHOLE.replace("step", "stop"))


def drop_run(folder: Path) -> None:
    (folder / "pass/checked.gv").write_text(_PROGRAM + "# CHECK: graph step\n")


def drop_checks(folder: Path) -> None:
    (folder / "pass/checked.gv").write_text(_PROGRAM + "# RUN: gravure opt %s | FileCheck %s\n")


def drop_expected(folder: Path) -> None:
    (folder / "pass/whole.gv.expected").unlink()


def add_orphan(folder: Path) -> None:
    (folder / "pass/gone.gv.expected").write_text(_PROGRAM)


def fail_command(folder: Path) -> None:
    (folder / "pass/checked.gv").write_text(_CHECKED.replace("gravure opt", "not gravure opt"))


def remove_all(folder: Path) -> None:
    for file in folder.glob("pass/*"):
        file.unlink()


# What is done to the copy, and the last line that the driver must then print.
_CASES: list[tuple[str, Callable[[Path], None], str]] = [
    ("unharmed", lambda folder: None, "2 passed, 0 failed"),
    ("a CHECK line is changed", damage_check, "1 passed, 1 failed"),
    ("an expected output is changed", damage_whole, "1 passed, 1 failed"),
    ("a program is changed", damage_program, "1 passed, 1 failed"),
    ("a RUN line is gone", drop_run, "1 passed, 1 failed"),
    ("the CHECK lines are gone", drop_checks, "1 passed, 1 failed"),
    ("an expected output is gone", drop_expected, "1 passed, 1 failed"),
    ("an expected output has no program", add_orphan, "2 passed, 1 failed"),
    ("a command exits otherwise than expected", fail_command, "1 passed, 1 failed"),
    ("no golden is left", remove_all, "0 passed, 1 failed"),
]


def run_case(
    driver: Path, name: str, damage: Callable[[Path], None], last_line: str, *flags: str
) -> bool:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        tool = folder / "tool"
        tool.write_text(_TOOL)
        tool.chmod(0o755)
        goldens = folder / "goldens"
        goldens.mkdir()
        make(goldens)
        damage(goldens)
        command = [sys.executable, str(driver), "--tool", str(tool), "--root", str(goldens)]
        done = subprocess.run([*command, *flags], capture_output=True, text=True, check=False)
        lines = done.stdout.rstrip().split("\n")
        fails = not last_line.endswith(" 0 failed")
        if lines[-1] == last_line and (done.returncode != 0) == fails:
            return True
        print(f"FAILED {name}: expected '{last_line}'; exit status {done.returncode}")
        print(done.stdout + done.stderr)
        return False


def update_case(driver: Path) -> bool:
    """--update writes the expected output anew, unless CI is set."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        tool = folder / "tool"
        tool.write_text(_TOOL)
        tool.chmod(0o755)
        goldens = folder / "goldens"
        goldens.mkdir()
        make(goldens)
        damage_whole(goldens)
        expected = goldens / "pass/whole.gv.expected"
        damaged = expected.read_text()
        base = [sys.executable, str(driver), "--tool", str(tool), "--root", str(goldens)]
        refused = subprocess.run([*base, "--update"], env={"CI": "true"}, capture_output=True)
        kept = expected.read_text() == damaged
        environment = {"PATH": "/usr/bin:/bin"}
        done = subprocess.run([*base, "--update"], env=environment, capture_output=True, text=True)
        ok = refused.returncode == 2 and kept and done.returncode == 0
        ok = ok and expected.read_text() == _PROGRAM and "+++ output" in done.stdout
        if not ok:
            print(f"FAILED update: {refused}\n{done}")
        return ok


def main() -> int:
    driver = Path(__file__).with_name("golden.py")
    results = [run_case(driver, *case) for case in _CASES]
    results.append(update_case(driver))
    print(f"{sum(results)} passed, {results.count(False)} failed", flush=True)
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())

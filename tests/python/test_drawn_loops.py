"""Drawn training loops have eager's bits; GRAVURE_DRAWN_LOOPS=100:200 draws others.

Each twenty run in a process of their own, as a user's loop does: what pytest has PyTorch log keeps
a model alive whose forward raised. A failure is shrunk, for a minute at most, to a script that
anybody can run, and prints it.
"""

from __future__ import annotations

import os
import subprocess
import sys

import drawn_loops
import pytest
from running import need_library

need_library()

FIRST, LAST = map(int, os.environ.get("GRAVURE_DRAWN_LOOPS", "0:40").split(":"))


@pytest.mark.parametrize("first", range(FIRST, LAST, 20))
def test_loops_are_eagers(first: int) -> None:
    seeds = f"{first}:{min(first + 20, LAST)}"
    command = [sys.executable, drawn_loops.__file__, "--loops", seeds]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"{min(20, LAST - first)} loops" in found.stdout

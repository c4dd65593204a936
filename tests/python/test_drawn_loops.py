"""Drawn training loops have eager's bits; GRAVURE_DRAWN_LOOPS=100:200 draws others.

A failure is shrunk, for a minute at most, to a script that anybody can run, and prints it.
"""

from __future__ import annotations

import os

import pytest
from drawn_loops import CHECKS, FINE, one
from running import need_library

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

SEEDS = range(*map(int, os.environ.get("GRAVURE_DRAWN_LOOPS", "0:60").split(":")))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loop_is_eagers(seed: int) -> None:
    found = one(seed, CHECKS, 60)
    assert found["kind"] in FINE, f"{found['text']}\n\n{found['script']}"

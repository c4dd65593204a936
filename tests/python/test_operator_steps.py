"""Steps on operators of PyTorch's of which forward and backward are replayed by turns.

A twentieth of the operators; `python tests/python/operator_steps.py` walks over all.
"""

from __future__ import annotations

import subprocess
import sys

import operator_steps
import pytest
from running import DEVICE, need_library

need_library()


def test_law_3_a_forward_or_backward_alone_is_replayed_in_eagers_bits() -> None:
    found = operator_steps.walk_in_processes(DEVICE, jobs=2, seed=0, shares=40, some=range(2))
    assert [each.line() for each in found if each.outcome == "different"] == []
    assert sum(each.outcome == "held" for each in found) > 15, found


@pytest.mark.parametrize("name", ["_unsafe_masked_index", "lu", "native_dropout_backward"])
def test_what_the_walk_found(name: str) -> None:
    """A list of indices that its kernel writes; sums that ran in another order; -0."""
    command = [sys.executable, operator_steps.__file__, f"--operators={name}"]
    run = subprocess.run([*command, f"--device={DEVICE}"], capture_output=True, text=True)
    lines = [line.split("\t") for line in run.stdout.splitlines()]
    assert ["held"] == [line[1] for line in lines if line[0] == name], run.stderr[-2000:]

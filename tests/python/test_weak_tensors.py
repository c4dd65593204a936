"""Tensors that are watched without being kept alive."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from gravure.calls.weak_tensors import WeakTensors

_ENDING = """
import ctypes, os, torch
from gravure.calls.weak_tensors import WeakTensors

kept = [torch.ones(1) for _ in range(2)]
watched = WeakTensors(os._exit)  # with the position of the one that died
watched.exchange(kept)
for outlives in (watched, kept[0]):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(outlives))
"""


def test_who_watches_is_told_of_a_death() -> None:
    died: list[int] = []
    kept, gone = torch.ones(1), torch.ones(1)
    watched = WeakTensors(died.append)
    watched.exchange([kept, gone])
    assert watched.are([kept, gone]) and not died
    del gone
    assert died == [1] and watched.living() == [kept, None]


def test_nobody_is_told_when_the_interpreter_ends() -> None:
    """The library, which would be told, cannot be called any more: transformers' models said so in
    a page of "Exception ignored"."""
    python = Path(__file__).parents[2] / "python"
    run = subprocess.run(
        [sys.executable, "-c", _ENDING],
        env={"PYTHONPATH": str(python)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (run.returncode, run.stderr) == (0, "")

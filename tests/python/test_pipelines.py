"""torch.distributed.pipelining over stages that are compiled: eager's bits, all replays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pipeline_program import LATE, MICROBATCHES, STEPS
from running import bits, need_library
from torch import Tensor

need_library()
PROGRAM = Path(__file__).with_name("pipeline_program.py")


def run(folder: Path, schedule: str, backend: str, ranks: int) -> list[tuple[list[Any], list[Any]]]:
    """What each rank computed, and counted."""
    command = [sys.executable, str(PROGRAM), str(folder)]
    several = [
        subprocess.Popen(
            [*command, str(rank), str(ranks), schedule, backend],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        said = [each.communicate(timeout=240)[0] for each in several]
    finally:
        for each in several:
            each.kill()
    for each, text in zip(several, said, strict=True):
        assert each.returncode == 0, text
    return [torch.load(folder / f"{backend}.{rank}") for rank in range(ranks)]


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B", "Interleaved1F1B"])
def test_a_steady_pipeline_is_replayed_in_eagers_bits(tmp_path: Path, schedule: str) -> None:
    eager = run(tmp_path, schedule, "eager", 2)
    compiled = run(tmp_path, schedule, "gravure", 2)
    stages = 2 if schedule == "Interleaved1F1B" else 1
    for (expected, _), (found, counts) in zip(eager, compiled, strict=True):
        assert [bits(t) for t in found] == [bits(t) for t in expected]
        assert any(isinstance(t, Tensor) for t in found)
        (runs, uncaptured), (late_runs, late_uncaptured) = counts[-1], counts[LATE - 1]
        assert runs - late_runs == (STEPS - LATE) * 2 * stages * MICROBATCHES
        assert uncaptured == late_uncaptured

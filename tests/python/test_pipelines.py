"""torch.distributed.pipelining over stages that are compiled: eager's bits, all replays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn as nn
from pipeline_program import LATE, MICROBATCHES, STEPS
from running import bits, need_library
from torch.distributed.pipelining import stage

need_library()
PROGRAM = Path(__file__).with_name("pipeline_program.py")


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B", "Interleaved1F1B"])
def test_a_steady_pipeline_is_replayed_in_eagers_bits(tmp_path: Path, schedule: str) -> None:
    stages = 2 if schedule == "Interleaved1F1B" else 1
    for rank in run(tmp_path, schedule):
        expected, found, counts = torch.load(rank)
        assert found
        assert [bits(t) for t in found] == [bits(t) for t in expected]
        (runs, uncaptured), (late_runs, late_uncaptured) = counts[-1], counts[LATE - 1]
        assert runs - late_runs == (STEPS - LATE) * 2 * stages * MICROBATCHES
        assert uncaptured == late_uncaptured


def run(folder: Path, schedule: str, ranks: int = 2) -> list[Path]:
    """What each rank wrote."""
    command = [sys.executable, str(PROGRAM), str(folder)]
    several = [
        subprocess.Popen(
            [*command, str(rank), str(ranks), schedule],
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
    return [folder / str(rank) for rank in range(ranks)]


def test_a_zero_bubble_schedule_is_refused_by_name(fresh: None) -> None:
    """It differentiates inside of a graph, which is one node."""
    model = nn.Linear(4, 4)
    call = torch.compile(model, backend="gravure")
    x = torch.randn(2, 4, requires_grad=True)
    loss = call(x).square().mean()
    with pytest.raises(RuntimeError, match=r"zero-bubble.*Interleaved1F1B"):
        stage.stage_backward_input([loss], None, [x], model.parameters())
    expected = model(x).square().mean()
    stage.stage_backward_input([expected], None, [x], model.parameters())

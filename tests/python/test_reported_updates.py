"""What an optimizer, clipping or an update calls is in the report, beside compiled graphs."""

from __future__ import annotations

import gc
from pathlib import Path

import gravure
import pytest
import torch
from running import need_library
from torch import nn

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


def _labels() -> list[str]:
    return [graph.label for graph in gravure.report().graphs]


def _trained(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = gravure.compile_optimizer(torch.optim.AdamW(model.parameters()))
    for _ in range(6):
        model(torch.randn(4, 8)).square().mean().backward()
        gravure.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def test_an_optimizer_and_clipping_without_a_compiled_model(tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    optimizer = _trained(model)
    found = {graph.label: graph for graph in gravure.report(html=tmp_path / "page.html").graphs}
    step = found["the step of AdamW"].programs[0]
    assert set(step.partitions["step"]) == {"captured"} and step.stats["replays"] > 0
    assert found["clipping"].programs[0].stats["replays"] > 0
    page = (tmp_path / "page.html").read_text()
    assert "the step of AdamW" in page and "No graph was compiled" not in page
    del optimizer, step, found
    model = nn.Linear(1, 1)
    gc.collect()
    assert "the step of AdamW" not in _labels() and "clipping" not in _labels()


def test_an_update() -> None:
    average, weight = torch.zeros(8), torch.ones(8)

    def follow(average: torch.Tensor, weight: torch.Tensor) -> None:
        average.lerp_(weight, 0.1)

    update = gravure.compile_update(follow)
    for _ in range(5):
        update(average, weight)
    assert "follow" in _labels()


def test_captures_that_are_dropped_leave_updates_alone() -> None:
    model = nn.Linear(8, 8)
    optimizer = _trained(model)
    gravure.drop_captures()
    torch._dynamo.reset()
    before = model.weight.detach().clone()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    assert not torch.equal(before, model.weight) and "the step of AdamW" in _labels()

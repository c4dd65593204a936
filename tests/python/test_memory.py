"""All programs of a device share memory, which can be given back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from gravure.calls.graph_passes import GraphPasses
from running import need_library
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from training import same_as_eager

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


class Broken(nn.Module):
    """Three graphs: Dynamo breaks it up twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x)).relu()
        torch._dynamo.graph_break()
        x = torch.tanh(self.second(x)).relu()
        torch._dynamo.graph_break()
        return torch.tanh(self.third(x)).relu()


def test_frames_that_nest_run_captured_and_share_memory() -> None:
    report = same_as_eager(Broken(), lambda _: (torch.randn(500, 64),), steps=8)
    stats = [program.stats for graph in report.graphs for program in graph.programs]
    assert len(stats) >= 3
    for each in stats:
        assert each["captures"] > 0 and each["uncaptured_steps"] <= 4


def test_released_memory_comes_back_with_the_next_step() -> None:
    released = []

    def batch(step: int) -> tuple[Tensor]:
        if step >= 4:
            released.append(gravure.release_memory())
        return (torch.randn(300, 64),)

    report = same_as_eager(Broken(), batch, steps=9)
    assert all(bytes_ > 0 for bytes_ in released)
    for graph in report.graphs:
        for program in graph.programs:
            assert program.stats["uncaptured_steps"] <= 4


class Scores(nn.Module):
    """A model whose large scores go to a loss in another graph, as a language model's may."""

    WORDS, ROWS = 16400, 512
    BYTES = WORDS * ROWS * 4

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(self.WORDS, 8), nn.Linear(8, self.WORDS, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        scores = self.head(self.table(ids).tanh())
        torch._dynamo.graph_break()
        return F.cross_entropy(scores, ids)


def _learn(run: Any, optimizer: torch.optim.Optimizer, batch: tuple[Tensor]) -> Tensor:
    optimizer.zero_grad()
    loss = run(*batch)
    loss.backward()
    optimizer.step()
    return loss.detach()


def _ids(_: int) -> tuple[Tensor]:
    return (torch.randint(Scores.WORDS, (Scores.ROWS,)),)


def test_large_scores_for_a_loss_in_another_graph_stand_once() -> None:
    """Not beside a copy, nor beside what the loss' backward takes when they are gone."""
    gravure.drop_captures()
    gravure.release_memory()
    report = same_as_eager(Scores(), _ids, _learn, steps=7)
    stats = [program.stats for graph in report.graphs for program in graph.programs]
    assert len(stats) == 2 and all(each["captures"] == 2 for each in stats)
    assert all(each["copied_result_bytes"] < 1000 for each in stats)
    alone = [each["arena_bytes"] for each in stats]
    assert min(alone) > Scores.BYTES and max(alone) > 2.9 * Scores.BYTES
    # Eager holds three such tensors at once, in the backward of the loss.
    assert gravure.release_memory() < 3.5 * Scores.BYTES


class Both(Scores):
    """Scores and their loss are results of one graph, as with models of transformers."""

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.head(self.table(ids).tanh())
        return F.cross_entropy(scores, ids), scores


def _learn_from_loss(run: Any, optimizer: torch.optim.Optimizer, batch: tuple[Tensor]) -> Tensor:
    return _learn(lambda *given: run(*given)[0], optimizer, batch)


def test_scores_beside_their_loss_leave_their_place_to_its_backward() -> None:
    report = same_as_eager(Both(), _ids, _learn_from_loss, steps=7)
    (program,) = report.graphs[-1].programs
    assert program.stats["captures"] == 2
    assert 2.9 * Scores.BYTES < program.stats["arena_bytes"] < 3.5 * Scores.BYTES


def _loss_and_gradient(weight: Tensor, x: Tensor) -> list[Tensor]:
    weight = weight.detach().requires_grad_()
    loss = (x @ weight).tanh().sum()
    return [loss, *torch.autograd.grad(loss, [weight])]


@pytest.mark.parametrize("keeps", ["the first", "each"])
@pytest.mark.parametrize("width", [64, 2100], ids=["1 MiB", "34 MB"])
def test_a_gradient_that_is_added_to_the_first_steps_is_no_copy(keeps: str, width: int) -> None:
    """As torchtitan's trainer has it: `.grad` is what the first step returned, and stays."""
    weight, x = torch.randn(4096, width), torch.randn(8, 4096)
    passes = GraphPasses()
    run = passes.step(make_fx(_loss_and_gradient, tracing_mode="fake")(weight, x), [0])
    total = torch.zeros_like(weight)
    kept = []
    for step in range(8):
        _, gradient = run(weight, x)
        expected = _loss_and_gradient(weight, x)[1]
        total += expected
        assert torch.equal(gradient, expected)
        if step == 0:
            weight.grad = gradient
        else:
            weight.grad += gradient
        if keeps == "each":
            kept.append((gradient, None if step == 0 else expected))
        del gradient, expected
    assert torch.equal(weight.grad, total)
    assert all(torch.equal(*pair) for pair in kept[1:])
    (stats,) = (p.stats for graph in gravure.report().graphs for p in graph.programs)
    assert stats["replays"] > 0
    assert (stats["copied_result_bytes"] < 1000) is (keeps == "the first")
    passes.shutdown()


@pytest.mark.parametrize("early", [False, True], ids=["in the backward", "before it"])
def test_scores_that_somebody_keeps_are_copies(early: bool) -> None:
    model = Scores()

    def compute(x: Tensor) -> Tensor:
        return model.head(x).tanh() * 2 + 1

    call = torch.compile(compute, backend="gravure")
    kept: list[tuple[Tensor, Tensor]] = []
    for step in range(10):
        x = torch.randn(Scores.ROWS, 8)
        scores = call(x)
        if step >= 6:  # the warm-up saw them dropped
            kept.append((scores.detach(), compute(x).detach()))
        loss = scores.square().mean()
        if early:
            del scores
        loss.backward()
        scores = None
        model.zero_grad()
        assert all(torch.equal(*pair) for pair in kept)
    (program,) = gravure.report().graphs[-1].programs
    assert "was still held when its next step began" in str(gravure.report())
    assert program.stats["captures"] == 2


def clears(when: list[str]) -> dict[str, int]:
    """What a program counts in a loop, right in every bit, that clears its gradients `when`:
    "early" is before the forward, "late" between it and the backward."""
    model = nn.Sequential(*(nn.Linear(96, 96) for _ in range(6)))
    moments: dict[int, Iterator[str]] = {}

    def step(run: Any, optimizer: torch.optim.Optimizer, batch: tuple[Tensor]) -> Tensor:
        moment = next(moments.setdefault(id(optimizer), iter(when)))
        if moment == "early":
            optimizer.zero_grad()
        loss = run(*batch).square().sum()
        if moment == "late":
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    report = same_as_eager(model, lambda _: (torch.randn(8, 96),), step, len(when))
    (graph,) = report.graphs
    return graph.programs[0].stats


def clears_alone(*loops: list[str]) -> list[dict[str, int]]:
    """`clears` of each in one new process, where nobody else can hold a gradient."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", __file__, json.dumps(loops)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])


def test_gradients_that_are_cleared_before_the_forward_take_no_memory_from_it() -> None:
    early, late = clears_alone(["early"] * 8, ["late"] * 8)
    assert early["arena_bytes"] < late["arena_bytes"]
    assert early["uncaptured_steps"] == late["uncaptured_steps"] == 4


def test_a_loop_that_begins_to_clear_them_late_keeps_every_bit() -> None:
    later, sooner = clears_alone(
        ["early"] * 4 + ["late"] * 6 + ["early"] * 2, ["late"] * 4 + ["early"] * 4
    )
    # One forward and its backward run uncaptured, then gradients are copies.
    assert later["uncaptured_steps"] == 4 + 2
    assert sooner["uncaptured_steps"] == 4


if __name__ == "__main__":
    print(json.dumps([dict(clears(loop)) for loop in json.loads(sys.argv[1])]))

"""Buffers that a checkpointed part writes: as often as in eager, which runs the part twice."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from gravure.calls import written_again
from gravure.torch_api import dynamo
from running import bits, need_library
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from training import replays

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(autouse=True)
def _nothing_said() -> None:
    """Each line is told once."""
    dynamo._warn.cache_clear()
    written_again._SAID.clear()


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return torch.tanh(self.linear(x)) * (1 + self.count * 0.01)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.linear(x)))


class WrittenLast(nn.Module):
    """Eager ends the second run once it has what the backward needs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.linear(x))
        self.mean.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        return y


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("scale", torch.full((6,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x)) * self.scale


class Net(nn.Module):
    def __init__(self, part: type[nn.Module], reentrant: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 5)
        self.parts = nn.ModuleList(part() for _ in range(2))
        self.reentrant = reentrant

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        x = self.first(x)
        for part in self.parts:
            x = checkpoint(part, x, use_reentrant=self.reentrant)
        return F.cross_entropy(self.last(x), target)


def train(model: Net, call: Callable[..., Any]) -> list[Any]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    found: list[Any] = []
    for i in range(7):
        torch.manual_seed(i)
        loss = call(torch.randn(4, 6), torch.randint(5, (4,)))
        found.append([bits(loss), *map(bits, model.buffers())])
        loss.backward()
        found.append([bits(p.grad) for p in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
        found.append([*map(bits, model.parameters()), *map(bits, model.buffers())])
    return found


WRITE = [Counted, Normed, WrittenLast]


@pytest.mark.parametrize("reentrant", [False, True], ids=["not-reentrant", "reentrant"])
@pytest.mark.parametrize("part", WRITE, ids=lambda part: part.__name__)
@pytest.mark.parametrize("how", ["the model", "each part", "both"])
def test_law_1_a_buffer_is_written_as_often_as_in_eager(
    how: str, part: type[nn.Module], reentrant: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if part is WrittenLast and how != "the model" and not reentrant:
        pytest.skip("eager would end the second run in the middle of the compiled part")
    torch.manual_seed(0)
    model = Net(part, reentrant)
    expected = train(twin := copy.deepcopy(model), twin)
    with caplog.at_level(logging.WARNING, "gravure"):
        call = model if how == "each part" else torch.compile(model, backend="gravure")
        for each in model.parts if how != "the model" else ():
            each.compile(backend="gravure")
        found = train(model, call)
    assert found == expected
    assert bool(replays(gravure.report())) == (how != "the model")
    told = "under torch.utils.checkpoint writes into a tensor from outside" in caplog.text
    assert told == (how != "each part")
    assert "test_written_again.py:" in caplog.text or not told


@pytest.mark.parametrize("reentrant", [False, True], ids=["not-reentrant", "reentrant"])
def test_a_part_that_writes_nothing_stays_in_its_graph(
    reentrant: bool, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    model = Net(Plain, reentrant)
    expected = train(twin := copy.deepcopy(model), twin)
    with caplog.at_level(logging.WARNING, "gravure"):
        assert train(model, torch.compile(model, backend="gravure")) == expected
    assert "torch.utils.checkpoint" not in caplog.text
    assert len(gravure.report().graphs) == 1


def test_an_evaluation_is_one_graph_all_the_same() -> None:
    torch.manual_seed(0)
    model = Net(Normed, False).eval()
    compiled = torch.compile(model, backend="gravure")
    with torch.no_grad():
        for _ in range(4):
            compiled(torch.randn(4, 6), torch.randint(5, (4,)))
    assert len(gravure.report().graphs) == 1 and replays(gravure.report())


def test_with_on_missed_it_is_an_error() -> None:
    compiled = torch.compile(Net(Normed, False), backend="gravure", options={"on_missed": "raise"})
    with pytest.raises(Exception, match="eager writes once more in the backward; compile each"):
        compiled(torch.randn(4, 6), torch.randint(5, (4,)))


def test_a_step_and_an_export_say_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = Net(Counted, False)
    args = torch.randn(4, 6), torch.randint(5, (4,))
    with caplog.at_level(logging.WARNING, "gravure"):
        step = gravure.compile_step(model)
        for _ in range(3):
            step(*args)
    assert caplog.text.count("eager writes once more in the backward, and a program does not") == 1
    caplog.clear()
    written_again._SAID.clear()
    with caplog.at_level(logging.WARNING, "gravure"):
        gravure.export_step(model, args, tmp_path / "step.gv")
    assert "eager writes once more in the backward" in caplog.text


class DrawsAgain(nn.Module):
    def __init__(self, *, keeps_state: bool, rate: float = 0.3, reentrant: bool = False) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(6, 6), nn.Dropout(rate), nn.Linear(6, 5))
        self.how = {"preserve_rng_state": keeps_state, "use_reentrant": reentrant}

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        y: Tensor = checkpoint(self.part, x, **self.how)
        return F.cross_entropy(y, target)


def train_drawing(model: nn.Module, call: Callable[..., Any]) -> list[Any]:
    found: list[Any] = []
    for step in range(8):
        torch.manual_seed(step)
        x, target = torch.randn(4, 6, requires_grad=True), torch.randint(5, (4,))
        loss = call(x, target)
        loss.backward()
        found.append([bits(loss), *(bits(p.grad) for p in model.parameters())])
        found.append(bits(torch.get_rng_state()))
        model.zero_grad()
    return found


@pytest.mark.parametrize("reentrant", [False, True], ids=["not-reentrant", "reentrant"])
def test_law_1_what_draws_anew_in_the_backward_does_so(
    reentrant: bool, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    model = DrawsAgain(keeps_state=False, reentrant=reentrant)
    expected = train_drawing(twin := copy.deepcopy(model), twin)
    with caplog.at_level(logging.WARNING, "gravure"):
        assert train_drawing(model, torch.compile(model, backend="gravure")) == expected
    assert "preserve_rng_state=False draws random numbers at" in caplog.text
    assert "test_written_again.py:" in caplog.text


@pytest.mark.parametrize("keeps_state, rate", [(True, 0.3), (False, 0.0)])
def test_what_draws_the_same_or_nothing_stays_in_its_graph(keeps_state: bool, rate: float) -> None:
    torch.manual_seed(0)
    model = DrawsAgain(keeps_state=keeps_state, rate=rate)
    expected = train_drawing(twin := copy.deepcopy(model), twin)
    assert train_drawing(model, torch.compile(model, backend="gravure")) == expected
    assert replays(gravure.report())


def test_a_step_says_that_it_does_not_draw_anew(caplog: pytest.LogCaptureFixture) -> None:
    args = torch.randn(4, 6), torch.randint(5, (4,))
    for keeps_state in (False, True):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "gravure"):
            step = gravure.compile_step(DrawsAgain(keeps_state=keeps_state))
            for _ in range(3):
                step(*args)
        assert caplog.text.count("preserve_rng_state=False") == (0 if keeps_state else 2)

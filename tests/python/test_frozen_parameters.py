"""Parameters that are frozen, or no longer, between steps: eager's gradients from the next step on.

Dynamo guards which parameters there are, not whether they require a gradient.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from running import TORCH, bits, need_library
from torch import Tensor
from training import state_of

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

Step = Callable[[Tensor], None]

# By step, the layers that are frozen: gradual unfreezing, back again, and all of them.
FROZEN = [{0, 1}] * 4 + [{0}] * 4 + [set()] * 4 + [{1}] * 2 + [{0, 1}] * 3 + [set()] * 2


class Layers(nn.Module):
    def __init__(self, *, views: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.register_buffer("shift", torch.ones(4))
        self.views = views

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        for layer in self.layers:
            x = torch.tanh(layer(x) + self.shift)
        loss = x.square().mean()
        return (loss, x, x.view(-1)) if self.views else (loss, x)

    def freeze(self, frozen: set[int]) -> None:
        for i, layer in enumerate(self.layers):
            layer.requires_grad_(i not in frozen)


def native(model: Layers) -> Step:
    call = torch.compile(model, backend="gravure", options={"poison": True})
    return lambda x: call(x)[0].backward()


def by_step(model: Layers) -> Step:
    step = gravure.compile_step(model, options={"poison": True})
    return lambda x: step(x)


def optimizer_of(model: Layers) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 0.01, fused=True)


def with_optimizer(model: Layers) -> Step:
    optimizer = optimizer_of(model)
    step = gravure.compile_step(model, optimizer=optimizer, options={"poison": True})
    return lambda x: step(x)


def eager(model: Layers) -> Step:
    return lambda x: model(x)[0].backward()


def eager_with_optimizer(model: Layers) -> Step:
    optimizer = optimizer_of(model)

    def step(x: Tensor) -> None:
        model(x)[0].backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.mark.parametrize(
    ("make", "views"),
    [(native, False), (native, True), (by_step, False), (with_optimizer, False)],
    ids=["native", "wrapped", "step", "optimizer"],
)
def test_gradients_are_those_of_what_is_trained_now(make: Any, *, views: bool) -> None:
    models = [Layers(views=views)]
    models.append(copy.deepcopy(models[0]))
    models[0].freeze(FROZEN[0])
    models[1].freeze(FROZEN[0])
    expects = eager_with_optimizer if make is with_optimizer else eager
    steps = [expects(models[0]), make(models[1])]
    for i, frozen in enumerate(FROZEN):
        for model, step in zip(models, steps, strict=True):
            model.freeze(frozen)
            torch.manual_seed(i)
            step(torch.randn(5, 4))
        found = [[bits(p.grad) for p in model.parameters()] for model in models]
        assert found[0] == found[1], frozen
        assert state_of(models[0]) == state_of(models[1])
        for model in models:
            model.zero_grad()


# Rows of a batch, and the layer that is frozen: a program for other sizes was made while another
# one was, under the number by which what is trained now is known.
SIZES_AND_FROZEN = [(5, 2), (5, 0), (3, 1), (3, 2), (3, 0)]


def test_two_sizes_of_a_step_are_trained_otherwise() -> None:
    models = [Layers()]
    models.append(copy.deepcopy(models[0]))
    steps = [eager(models[0]), by_step(models[1])]
    for rows, frozen in SIZES_AND_FROZEN:
        for model, step in zip(models, steps, strict=True):
            model.zero_grad()
            model.freeze({frozen})
            torch.manual_seed(rows)
            step(torch.randn(rows, 4))
        assert state_of(models[0]) == state_of(models[1])
        found = [[bits(p.grad) for p in model.parameters()] for model in models]
        assert found[0] == found[1], (rows, frozen)


def test_a_model_that_was_frozen_whole() -> None:
    model = Layers()
    model.freeze({0, 1, 2})
    call = torch.compile(model, backend="gravure")
    x = torch.randn(5, 4)
    for _ in range(4):
        assert not call(x)[0].requires_grad
    model.freeze({0, 1})
    for _ in range(4):
        model.zero_grad()
        call(x)[0].backward()
        found = bits(model.layers[2].weight.grad)
        model.zero_grad()
        model(x)[0].backward()
        assert found == bits(model.layers[2].weight.grad)
    with torch.no_grad():
        assert not call(x)[0].requires_grad


def test_a_program_is_made_once_for_what_is_trained() -> None:
    others = {graph.number for graph in gravure.report().graphs}

    def made() -> int:
        return len({graph.number for graph in gravure.report().graphs} - others)

    model = Layers()
    model.freeze({0})
    call = torch.compile(model, backend="gravure")
    x = torch.randn(5, 4)
    for i in range(12):
        model.freeze({0} if i % 4 < 2 else set())
        call(x)[0].backward()
    assert made() == 2
    step = gravure.compile_step(model)
    for i in range(16):
        model.freeze({0} if i % 4 < 2 else set())
        model.zero_grad()
        step(x)
    # Once more for the first pattern, which had no number yet, where Dynamo does not look for it.
    assert made() == 2 + (2 if TORCH >= (2, 15) else 3)


def test_a_program_for_another_shape_was_made_for_what_was_trained_then() -> None:
    model = Layers()
    step = gravure.compile_step(model)
    for rows, frozen in ((5, {0}), (5, set()), (7, {0}), (7, set()), (5, set()), (7, {0})):
        model.freeze(frozen)
        model.zero_grad()
        step(torch.randn(rows, 4))
        assert (model.layers[0].weight.grad is None) == (0 in frozen)


def test_sizes_that_are_open() -> None:
    model = Layers()
    model.freeze({0})
    call = torch.compile(model, backend="gravure", dynamic=True, options={"max_shapes": 2})

    def same(rows: int) -> None:
        found = []
        x = torch.randn(rows, 4)
        for run in (call, model):
            model.zero_grad()
            run(x)[0].backward()
            found.append([bits(p.grad) for p in model.parameters()])
        assert found[0] == found[1]

    for rows in (5, 6, 7):
        same(rows)
    model.freeze(set())
    for rows in (8, 9, 8, 9):
        same(rows)
    if TORCH < (2, 15):  # whose Dynamo traces it anew
        said = r"layers.0.weight.* requires a gradient, which it did not .*torch._dynamo.reset\(\)"
        with pytest.raises(RuntimeError, match=said):
            call(torch.randn(10, 4))
        torch._dynamo.reset()
    same(10)


@pytest.mark.parametrize("views", [False, True], ids=["native", "wrapped"])
def test_a_gradient_that_nobody_gets_is_not_computed(*, views: bool) -> None:
    model = Layers(views=views)
    call = torch.compile(model, backend="gravure")
    x = torch.randn(5, 4)
    for _ in range(4):
        call(x)[0].backward()
    model.freeze({0, 1})
    for _ in range(4):
        model.zero_grad()
        loss = call(x)[0]
        with torch.no_grad():
            model.layers[1].weight.mul_(2)  # which the backward of what is trained does not read
        loss.backward()
        assert model.layers[0].weight.grad is None
    model.freeze(set())
    call(x)[0].backward()
    assert model.layers[0].weight.grad is not None

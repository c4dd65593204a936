"""torch.compile(backend="gravure"): several sizes, several modules, several threads."""

from __future__ import annotations

import copy
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from running import bits, need_library
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from training import (
    Mlp,
    Side,
    replays,
    rows,
    same_as_eager,
    state_of,
    train_step,
)

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


def test_none_and_numbers_as_arguments() -> None:
    class Optional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor, mask: Tensor | None, scale: int) -> tuple[Any, ...]:
            y = self.linear(x) * scale
            return (y if mask is None else y * mask), None, scale

    same_as_eager(Optional(), lambda i: (*rows(i), None if i % 2 else torch.rand(8), i % 3))


def test_another_batch_size_compiles_anew() -> None:
    report = same_as_eager(Mlp(), lambda i: (torch.randn((5, 7, 3)[i // 4], 8),), steps=12)
    assert len(report.graphs) == 2 and replays(report)


def test_dynamic_sizes_are_captured_one_by_one() -> None:
    report = same_as_eager(
        Mlp(0.2), lambda i: (torch.randn((5, 7, 3)[i % 3], 8),), steps=15, dynamic=True
    )
    (graph,) = report.graphs
    assert sorted(p.sizes for p in graph.programs) == [[3], [5], [7]]
    assert all(p.stats["replays"] for p in graph.programs)


def test_more_sizes_than_allowed_run_uncaptured(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gravure"):
        report = same_as_eager(
            Mlp(),
            lambda i: (torch.randn(2 + i % 4, 8),),
            steps=12,
            dynamic=True,
            options={"max_shapes": 2},
        )
    assert "max_shapes" in caplog.text
    assert [p.sizes for p in report.graphs[0].programs] == [[2], [3], []]


def test_a_replaced_parameter_is_used() -> None:
    model, twin = nn.Linear(8, 4), nn.Linear(8, 4)
    twin.load_state_dict(model.state_dict())
    compiled = torch.compile(model, backend="gravure")
    for i in range(8):
        if i == 4:
            for each in (model, twin):
                each.weight = nn.Parameter(torch.full((4, 8), 0.5))
        x = torch.randn(3, 8)
        results = compiled(x), twin(x)
        for each, result in zip((model, twin), results, strict=True):
            each.zero_grad()
            result.square().sum().backward()
        assert bits(results[0]) == bits(results[1])
        assert bits(model.weight.grad) == bits(twin.weight.grad)


def test_threads_take_turns() -> None:
    model = Mlp()
    compiled = torch.compile(model, backend="gravure", options={"poison": True})
    x = torch.randn(5, 8)
    with torch.no_grad():
        expected = bits(model(x))
        for _ in range(4):
            compiled(x)

        def work(_: int) -> bool:
            with torch.no_grad():
                return all(bits(compiled(x)) == expected for _ in range(50))

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, range(8)))


def _layers() -> tuple[nn.Sequential, nn.Sequential]:
    class Layer(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            return x + F.pad(super().forward(x), (0, 4))

    model = nn.Sequential(*[Layer(0.2) for _ in range(4)])
    return model, copy.deepcopy(model)


@pytest.mark.parametrize("limit", [256, 2])
def test_layers_that_are_compiled_one_by_one(limit: int, caplog: pytest.LogCaptureFixture) -> None:
    model, twin = _layers()
    for layer in model:
        layer.compile(backend="gravure", options={"poison": True, "max_modules": limit})
    sides = Side(model, model), Side(twin, twin)
    with caplog.at_level(logging.WARNING, "gravure"):
        for i in range(9):
            batch = rows(i)
            found, expected = (side.run(train_step, batch, i) for side in sides)
            assert found == expected and state_of(model) == state_of(twin)
    graphs = gravure.report().graphs
    served = sum(p.stats["replays"] > 0 for graph in graphs for p in graph.programs)
    if limit > 4:
        assert served == 4 and len(graphs) < 4 and not caplog.text
    else:
        assert served >= 2 and "max_modules" in caplog.text


def test_modules_of_one_class_in_turn() -> None:
    models = [Mlp(0.1) for _ in range(3)]
    twins = copy.deepcopy(models)
    call = torch.compile(lambda model, x: model(x), backend="gravure", options={"poison": True})
    for i in range(12):
        x = torch.randn(5, 8)
        seen = []
        for run, group in ((call, models), (lambda model, x: model(x), twins)):
            torch.manual_seed(i)
            loss = sum(run(model, x).square().sum() for model in group[: 1 + i % 3])
            loss.backward()
            seen.append([bits(loss), *map(state_of, group)])
        assert seen[0] == seen[1]


@pytest.mark.parametrize("dynamic", [None, True])
def test_saved_values_on_the_cpu_of_several_sizes(dynamic: bool | None) -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        with torch.autograd.graph.save_on_cpu():
            return train_step(model, optimizer, batch)

    sizes = lambda i: (torch.randn(2 + i % 3, 8),)  # noqa: E731
    same_as_eager(Mlp(0.1), sizes, step, steps=10, dynamic=dynamic)


def test_saved_values_on_the_cpu() -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        with torch.autograd.graph.save_on_cpu():
            return train_step(model, optimizer, batch)

    same_as_eager(Mlp(0.1), rows, step)


def test_dynamic_sizes_with_checkpointed_dropout() -> None:
    class Checkpointed(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(super().forward, x, use_reentrant=False)

    sizes = lambda i: (torch.randn(2 + i % 2, 8),)  # noqa: E731
    assert replays(same_as_eager(Checkpointed(0.3), sizes, steps=10, dynamic=True))

"""Calls that share eager's casts, those under one autocast, have its bits: they run as they are."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from running import bits, need_library
from torch import Tensor
from training import replays, same_as_eager

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


class Narrow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh())


def rows(_: int) -> tuple[Tensor, ...]:
    return torch.randn(32, 16), torch.randn(32, 16)


def casts() -> Any:
    return torch.autocast("cpu", torch.bfloat16)


def size(result: Tensor) -> Tensor:
    return result.float().square().mean()


def stepping(forward: Callable[..., Any]) -> Callable[..., Any]:
    """`forward` has the model, a batch's two members, and the optimizer; it returns losses."""

    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        optimizer.zero_grad()
        losses = forward(model, *batch, optimizer)
        for loss in losses:
            if loss.requires_grad:
                loss.backward()
        optimizer.step()
        return [loss.detach() for loss in losses]

    return step


def together(model: Any, x: Tensor, y: Tensor, _: Any) -> list[Tensor]:
    with casts():
        return [size(model(x)) + size(model(y))]


def in_a_row(model: Any, x: Tensor, y: Tensor, _: Any) -> list[Tensor]:
    with casts():
        return [size(model(model(x)) - y)]


def written_inside(model: Any, x: Tensor, y: Tensor, optimizer: Any) -> list[Tensor]:
    """Eager goes on with the casts of the weights from before."""
    losses = []
    with casts():
        for part in (x, y, x):
            optimizer.zero_grad()
            loss = size(model(part))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return losses


def report_of(steps: int, step: Callable[[Any, Tensor], None]) -> gravure.Report:
    """Behind `steps` calls of `step`, which has a compiled model and a batch."""
    others = {graph.number for graph in gravure.report().graphs}
    model = torch.compile(Narrow(), backend="gravure")
    for i in range(steps):
        step(model, rows(i)[0])
    found = gravure.report()
    found.graphs = [graph for graph in found.graphs if graph.number not in others]
    return found


def test_a_report_says_that_calls_run_as_they_are() -> None:
    """Not that a program is cold which no call will take."""

    def step(model: Any, x: Tensor) -> None:
        with casts():
            loss = size(model(x)) + size(model(x.sin()))
        loss.backward()

    (graph,) = report_of(5, step).graphs
    assert not graph.programs and "an autocast of its own" in graph.failure
    assert "runs as it is: several calls" in str(graph) and "cold" not in str(graph)


def test_a_report_says_that_no_backward_was_seen() -> None:
    with casts():
        (unseen,) = report_of(12, lambda model, x: model(x)).graphs
        assert "torch.no_grad()" in unseen.failure
        (trained,) = report_of(12, lambda model, x: size(model(x)).backward()).graphs
    assert not trained.failure


def test_a_report_has_the_program_that_is_called() -> None:
    """And not the one for backwards without autocast, which none of its calls has."""

    def step(model: Any, x: Tensor) -> None:
        with casts():
            size(model(x)).backward()

    (graph,) = report_of(6, step).graphs
    assert graph.programs[0].stats["replays"] and not graph.failure


def test_a_result_is_saved_without_a_word() -> None:
    model = torch.compile(Narrow(), backend="gravure")
    with casts():
        result = model(rows(0)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.save(result, io.BytesIO())


@pytest.mark.parametrize("forward", [together, in_a_row, written_inside])
def test_calls_that_share_casts_run_as_they_are(
    forward: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "gravure"):
        assert not replays(same_as_eager(Narrow(), rows, stepping(forward)))
    assert "runs as it is" in caplog.text and "cache_enabled=False" in caplog.text
    assert "other bits" not in caplog.text


def apart(model: Any, x: Tensor, y: Tensor, _: Any) -> list[Tensor]:
    with casts():
        return [size(model(x)), size(model(y))]


def one_after_the_other(model: Any, x: Tensor, y: Tensor, _: Any) -> list[Tensor]:
    with casts():
        for part in (x, y):
            size(model(part)).backward()
    return []


def often(model: Any, x: Tensor, y: Tensor, _: Any) -> list[Tensor]:
    with casts():
        for _ in range(6):
            size(model(x) + y).backward()
            size(model(y) - x).backward()
    return []


def each_by_itself(model: Any, x: Tensor, y: Tensor, _: Any) -> list[Tensor]:
    with casts():
        first = size(model(x))
    with casts():
        return [first + size(model(y))]


def nothing_kept(model: Any, x: Tensor, y: Tensor, _: Any) -> list[Tensor]:
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        return [size(model(x)) + size(model(y))]


@pytest.mark.parametrize(
    "forward", [apart, one_after_the_other, often, each_by_itself, nothing_kept]
)
def test_calls_that_share_none_are_captured(forward: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gravure"):
        assert replays(same_as_eager(Narrow(), rows, stepping(forward)))
    assert not caplog.text


def test_layers_that_are_compiled_by_themselves_are_captured(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One graph, called for each of them."""
    model = nn.Sequential(*(Narrow() for _ in range(4)))
    twin = nn.Sequential(*(Narrow() for _ in range(4)))
    twin.load_state_dict(model.state_dict())
    layers = [torch.compile(layer, backend="gravure") for layer in model]
    with caplog.at_level(logging.WARNING, "gravure"):
        for i in range(8):
            torch.manual_seed(i)
            (x, _), (m, t) = rows(i), (model, twin)
            for module, called in ((m, layers), (t, list(t))):
                module.zero_grad()
                with casts():
                    y = x
                    for layer in called:
                        y = layer(y)
                    loss = size(y)
                loss.backward()
            assert same_gradients(model, twin)
    assert not caplog.text


def same_gradients(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(bits(p.grad) == bits(q.grad) for p, q in pairs)


def test_calls_that_share_casts_later(caplog: pytest.LogCaptureFixture) -> None:
    """What was captured says that gradients were other ones, and has eager's from then on."""
    model, twin = Narrow(), Narrow()
    twin.load_state_dict(model.state_dict())
    call = torch.compile(model, backend="gravure")
    equal = []
    with caplog.at_level(logging.WARNING, "gravure"):
        for i in range(10):
            torch.manual_seed(i)
            batch = rows(i)
            for module, called in ((model, call), (twin, twin)):
                module.zero_grad()
                with casts():
                    loss = size(called(batch[0]))
                    if i > 4:
                        loss = loss + size(called(batch[1]))
                loss.backward()
            equal.append(same_gradients(model, twin))
            assert bool(caplog.text) == (i > 5)
    assert equal == [True] * 5 + [False] + [True] * 4
    assert caplog.text.count("other bits than eager's") == 1


def test_two_graphs_with_one_weight(caplog: pytest.LogCaptureFixture) -> None:
    model, twin = Narrow(), Narrow()
    twin.load_state_dict(model.state_dict())

    def first(m: Any, x: Tensor) -> Tensor:
        return m.first(x).tanh()

    def second(m: Any, x: Tensor) -> Tensor:
        return m.second(m.first(x))

    ours = [torch.compile(fn, backend="gravure") for fn in (first, second)]
    with caplog.at_level(logging.WARNING, "gravure"):
        for i in range(6):
            torch.manual_seed(i)
            x, _ = rows(i)
            for module, (one, two) in ((model, ours), (twin, (first, second))):
                module.zero_grad()
                with casts():
                    loss = size(two(module, one(module, x)))
                loss.backward()
            assert same_gradients(model, twin)
    assert caplog.text.count("runs as it is") == 2

"""A gradient from outside of a graph that lies otherwise than the backward was traced for.

Eager reads it as it lies, and sums in that order. So does a backward that is made for it; where
there can be none, it is copied, as AOTAutograd does, and the user is told, once a graph.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gravure
import pytest
import torch
from running import bits, need_library
from torch import Tensor, nn

need_library()

SAID = "memory format, so it is copied first"


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def _told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if SAID in r.getMessage()]


LOSSES = {
    "expanded": (lambda y: y.sum(), "[0, 0]"),
    "transposed": (lambda y: (y.t() * torch.arange(20.0).view(4, 5)).sum(), "[1, 5]"),
}
_Loss = Callable[[Tensor], Tensor]


class Attention(nn.Module):
    """Its result is transposed, so a loss of it gives a gradient that is."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.norm = nn.Linear(8, 48), nn.GroupNorm(2, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(-1, (3, 16)).unbind(-2)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.norm(mixed.transpose(1, 2)), mixed.transpose(1, 2)


def _gradients(model: nn.Module, call: Callable[..., Any], loss: Callable[..., Tensor]) -> Any:
    """Of each of six steps, in bits."""
    found = []
    for i in range(6):
        model.zero_grad()
        results = call(torch.randn(5, 8, generator=torch.Generator().manual_seed(i)))
        loss(results).backward()
        found.append([bits(parameter.grad) for parameter in model.parameters()])
    return found


@pytest.mark.parametrize("loss", [loss for loss, _ in LOSSES.values()], ids=LOSSES)
def test_it_is_read_as_it_lies_from_the_first_step_on(
    caplog: pytest.LogCaptureFixture, loss: _Loss
) -> None:
    model = _model()
    with caplog.at_level(logging.WARNING, "gravure"):
        found = _gradients(model, torch.compile(model, backend="gravure"), loss)
    assert found == _gradients(model, model, loss)
    assert not _told(caplog)
    (program,) = gravure.report().graphs[0].programs
    assert program.stats["replays"] > 0


def test_a_convolution_whose_gradient_is_channels_last(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 8, 3))

    def run(x: Tensor) -> Tensor:
        return model(x.expand(40, 5, 8).unflatten(0, (40, 1)))

    def loss(y: Tensor) -> Tensor:
        return (y.contiguous(memory_format=torch.channels_last) ** 3).sum()

    with caplog.at_level(logging.WARNING, "gravure"):
        found = _gradients(model, torch.compile(run, backend="gravure"), loss)
    assert found == _gradients(model, run, loss)
    assert not _told(caplog)


@pytest.mark.parametrize("which", [0, 1])
def test_a_loss_of_one_of_two_transposed_results(
    caplog: pytest.LogCaptureFixture, which: int
) -> None:
    """The other one has no gradient."""
    torch.manual_seed(0)
    model = Attention()

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        return model(x.expand(3, 5, 8))

    def loss(results: tuple[Tensor, Tensor]) -> Tensor:
        return results[which].exp().sum()

    with caplog.at_level(logging.WARNING, "gravure"):
        found = _gradients(model, torch.compile(run, backend="gravure"), loss)
    assert not _told(caplog)
    for ours, eager in zip(found, _gradients(model, run, loss), strict=True):
        assert ours == eager


@pytest.mark.parametrize(("loss", "strides"), LOSSES.values(), ids=LOSSES)
def test_it_is_said_once_with_the_cure(
    caplog: pytest.LogCaptureFixture, loss: _Loss, strides: str
) -> None:
    """Of gradients that lie otherwise by turns, for which there is one backward."""
    call = torch.compile(_model(), backend="gravure")
    with caplog.at_level(logging.WARNING, "gravure"):
        for i in range(8):
            y = call(torch.randn(5, 8))
            (y.square().mean() if i % 2 else loss(y)).backward()
    (line,) = _told(caplog)
    assert f"result 0 has sizes [5, 4] and strides {strides}" in line
    assert "inside of the compiled function" in line and "compile_step" in line


def test_once_a_graph_whatever_its_sizes_and_calls_in_flight(
    caplog: pytest.LogCaptureFixture,
) -> None:
    call = torch.compile(_model(), backend="gravure", dynamic=True)
    with caplog.at_level(logging.WARNING, "gravure"):
        for i in range(12):
            first, second = (call(torch.randn(5 + i % 3, 8)) for _ in range(2))
            (second.sum() + first.sum()).backward()
    assert len(_told(caplog)) == 1


def test_calls_in_flight(caplog: pytest.LogCaptureFixture) -> None:
    model = _model()
    call = torch.compile(model, backend="gravure")
    with caplog.at_level(logging.WARNING, "gravure"):
        for _ in range(6):
            given = [torch.randn(5, 8) for _ in range(2)]
            found = []
            for function in (call, model):
                model.zero_grad()
                first, second = map(function, given)
                (second.sum() + first.sum()).backward()
                found.append([bits(parameter.grad) for parameter in model.parameters()])
            assert found[0] == found[1]
    assert not _told(caplog)


def test_each_graph_is_told_also_behind_a_reset(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gravure"):
        for _ in range(2):
            torch._dynamo.reset()
            call = torch.compile(_model(), backend="gravure", dynamic=True)
            for _ in range(4):
                call(torch.randn(5, 8)).sum().backward()
    assert len(_told(caplog)) == 2


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("inside", [True, False])
def test_nothing_is_said_of_a_gradient_that_lies_as_its_result(
    caplog: pytest.LogCaptureFixture, *, inside: bool, dynamic: bool
) -> None:
    model = _model()

    def run(x: Tensor) -> Tensor:
        return model(x).sum() if inside else model(x)

    call = torch.compile(run, backend="gravure", dynamic=dynamic)
    with caplog.at_level(logging.WARNING, "gravure"):
        for _ in range(4):
            y = call(torch.randn(5, 8))
            (y if inside else y.square().mean()).backward()
    assert not _told(caplog)


def test_the_result_is_named_by_its_place_among_all(caplog: pytest.LogCaptureFixture) -> None:
    model = _model()

    def several(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x * 2, model(x), model(x).exp()

    call = torch.compile(several, backend="gravure", dynamic=True)
    with caplog.at_level(logging.WARNING, "gravure"):
        for _ in range(4):
            _, y, z = call(torch.randn(5, 8))
            (y.square().sum() + z.sum()).backward()
    (line,) = _told(caplog)
    assert "the gradient of result 2 " in line


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_result_that_has_no_gradient(*, dynamic: bool) -> None:
    model = _model()
    call = torch.compile(lambda x: (model(x), model(x * 2)), backend="gravure", dynamic=dynamic)
    for _ in range(4):
        x = torch.randn(5, 8)
        call(x)[1].square().mean().backward()
        expected = model(x * 2).square().mean()
        found = [parameter.grad for parameter in model.parameters()]
        wanted = torch.autograd.grad(expected, list(model.parameters()))
        assert list(map(bits, found)) == list(map(bits, wanted))
        model.zero_grad()


@torch.library.custom_op("gradient_layout::twice", mutates_args=())
def _twice(x: Tensor) -> Tensor:
    return x * 2


_twice.register_fake(torch.empty_like)
_twice.register_autograd(lambda _, gradient: gradient * 2)


def test_once_where_the_library_runs_what_the_wrapper_ran_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As with an operator of the user's, which AOTAutograd's wrapper checks in the first call."""
    model = _model()
    call = torch.compile(lambda x: model(_twice(x)), backend="gravure")
    with caplog.at_level(logging.WARNING, "gravure"):
        for _ in range(6):
            call(torch.randn(5, 8)).sum().backward()
    assert len(_told(caplog)) == 1


def test_a_result_is_saved_without_a_word() -> None:
    call = torch.compile(_model(), backend="gravure", dynamic=True)
    for rows in (5, 6, 7):
        result = call(torch.randn(rows, 8))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.save(result, io.BytesIO())
        result.square().mean().backward()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_where_a_result_has_no_gradient(caplog: pytest.LogCaptureFixture, *, dynamic: bool) -> None:
    first, second = _model(), _model()

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        return first(x).exp(), second(x).exp()

    call = torch.compile(run, backend="gravure", dynamic=dynamic)
    with caplog.at_level(logging.WARNING, "gravure"):
        found = _gradients(first, call, lambda results: results[0].sum())
    assert len(_told(caplog)) == int(dynamic)
    if not dynamic:
        assert found == _gradients(first, run, lambda results: results[0].sum())

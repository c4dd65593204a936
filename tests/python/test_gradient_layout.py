"""A gradient from outside of a graph that lies otherwise than the backward was traced for.

It is copied, as AOTAutograd does, and eager reads it as it lies: the user is told, once a graph.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator

import gravure  # noqa: F401  registers the backend
import pytest
import torch
from running import bits, need_library
from torch import Tensor, nn

need_library()

SAID = "lies in memory as the result does"


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


@pytest.mark.parametrize(
    ("loss", "strides"),
    [
        (lambda y: y.sum(), "[0, 0]"),
        (lambda y: (y.t() * torch.ones(4, 5)).sum(), "[1, 5]"),
    ],
    ids=["expanded", "transposed"],
)
def test_it_is_said_once_with_the_cure(
    caplog: pytest.LogCaptureFixture, loss: Callable[[Tensor], Tensor], strides: str
) -> None:
    call = torch.compile(_model(), backend="gravure")
    with caplog.at_level(logging.WARNING, "gravure"):
        for _ in range(6):
            loss(call(torch.randn(5, 8))).backward()
    (line,) = _told(caplog)
    assert f"result 0 has sizes [5, 4] and strides {strides}" in line
    assert "inside of the compiled function" in line and "compile_step" in line


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_once_a_graph_whatever_its_sizes_and_calls_in_flight(
    caplog: pytest.LogCaptureFixture, *, dynamic: bool
) -> None:
    call = torch.compile(_model(), backend="gravure", dynamic=dynamic)
    with caplog.at_level(logging.WARNING, "gravure"):
        for i in range(12):
            rows = 5 + i % 3 if dynamic else 5
            first, second = (call(torch.randn(rows, 8)) for _ in range(2))
            (second.sum() + first.sum()).backward()
    assert len(_told(caplog)) == 1


def test_each_graph_is_told_also_behind_a_reset(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gravure"):
        for _ in range(2):
            torch._dynamo.reset()
            call = torch.compile(_model(), backend="gravure")
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


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_the_result_is_named_by_its_place_among_all(
    caplog: pytest.LogCaptureFixture, *, dynamic: bool
) -> None:
    model = _model()

    def several(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x * 2, model(x), model(x).exp()

    call = torch.compile(several, backend="gravure", dynamic=dynamic)
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


def test_once_where_a_result_has_no_gradient(caplog: pytest.LogCaptureFixture) -> None:
    """From the second call on another program runs, which goes without that gradient."""
    first, second = _model(), _model()
    call = torch.compile(lambda x: (first(x).exp(), second(x).exp()), backend="gravure")
    with caplog.at_level(logging.WARNING, "gravure"):
        for _ in range(8):
            call(torch.randn(5, 8))[0].sum().backward()
    assert len(_told(caplog)) == 1

"""Gradients whose formula eager chooses by the data: in eager's bits, with zeros and without."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import gravure
import pytest
import torch
from gravure.errors import ExportError
from gravure.torch_api.chosen_formulas import REMEDY
from running import need_library
from torch import Tensor
from training import replays, same_gradients

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

PRODUCTS: dict[str, Callable[[Tensor], Tensor]] = {
    "method": lambda x: x.prod(),
    "function": lambda x: torch.prod(x),
    "named": lambda x: torch.prod(input=x, dim=1),
    "keepdim": lambda x: x.prod(dim=0, keepdim=True),
    "of the class": lambda x: torch.Tensor.prod(x, 1),
    "operator": lambda x: torch.ops.aten.prod.dim_int(x, -1),
    "masked": lambda x: torch.masked.prod(x, 1, mask=x < 2),
    "dtype": lambda x: x.prod(dtype=torch.float64),
}


def step(product: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def loss(x: Tensor) -> Tensor:
        y = torch.tanh(x * 1.5)
        return (product(y) * 0.7).sin().sum() + (y * y).sum()

    return loss


def inputs() -> Iterator[Tensor]:
    for i in range(10):
        torch.manual_seed(i)
        x = torch.randn(4, 5)
        if i % 3 == 2:
            x[i % 4, 1] = 0.0
        yield x


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
def test_law_1_a_product_has_eagers_gradient(product: Callable[[Tensor], Tensor]) -> None:
    loss = step(product)
    same_gradients(loss, torch.compile(loss, backend="gravure"), inputs())
    text = str(gravure.report())
    assert replays(gravure.report()), text
    assert f"chooses by the data; {REMEDY}" in text
    assert "test_chosen_formulas.py:" in text


@pytest.mark.parametrize(
    "product", [lambda x: x.cumprod(1), lambda x: torch.cumprod(x, 0)], ids=["method", "function"]
)
def test_law_1_a_running_product_has_eagers_gradient(product: Callable[[Tensor], Tensor]) -> None:
    """From torch 2.12 on it has one formula, so it is the cure."""
    loss = step(lambda x: product(x).select(1, -1))
    same_gradients(loss, torch.compile(loss, backend="gravure"), inputs())
    report = gravure.report()
    assert replays(report) and (len(report.graphs) == 1) == ("cumprod" in REMEDY)


def test_a_product_without_a_gradient_stays_in_its_graph() -> None:
    def loss(x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = x.prod() + torch.prod(x, 0)
        return (x * scale * x.detach().prod()).sum()

    same_gradients(loss, torch.compile(loss, backend="gravure"), inputs())
    assert len(gravure.report().graphs) == 1


def test_inductors_kernels_promise_no_bits_of_eagers() -> None:
    loss = step(PRODUCTS["method"])
    inductor = {"codegen": "inductor"}
    for how in ({"options": inductor}, {"mode": "reduce-overhead"}):
        compiled = torch.compile(loss, backend="gravure", **how)
        for _ in range(3):
            compiled(torch.randn(4, 5, requires_grad=True)).backward()
        assert "chooses by the data" not in str(gravure.report())
        torch._dynamo.reset()
    w = torch.ones(5, requires_grad=True)
    whole = gravure.compile_step(lambda x: (x * w).prod(), options=inductor)
    whole(torch.randn(4, 5))
    assert w.grad is not None


def test_other_backends_are_left_alone() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    torch.compile(lambda x: x, backend="gravure")(torch.ones(1))
    torch.compile(step(PRODUCTS["method"]), backend=backend)(torch.randn(4, 5, requires_grad=True))
    assert len(graphs) == 1


def test_a_compiled_step_refuses_it() -> None:
    w = torch.ones(5, requires_grad=True)
    compiled = gravure.compile_step(lambda x: (x * w).prod())
    with pytest.raises(ExportError, match=re.escape(REMEDY)):
        compiled(torch.randn(4, 5))

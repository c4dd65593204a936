"""A torch.autograd.Function that wants None for the gradient of a result that nobody uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gravure
import pytest
import torch
from gravure.errors import ExportError
from running import bits, need_library
from torch import Tensor

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

Ctx = Any


def _gradients(ctx: Ctx, of_product: Tensor | None, of_sine: Tensor | None) -> tuple[Any, Any]:
    """Tells by None what was used."""
    x, w = ctx.saved_tensors
    of_x = None if of_product is None else of_product * w
    of_w = None if of_product is None else of_product * x
    if of_sine is None:
        return None if of_x is None else of_x * 3, of_w
    return of_sine * x.cos() if of_x is None else of_x + of_sine * x.cos(), of_w


class Both(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Ctx, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, w)
        return x * w, x.sin()

    backward = staticmethod(_gradients)


class WithSetup(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x * w, x.sin()

    @staticmethod
    def setup_context(ctx: Ctx, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(value=False)

    backward = staticmethod(_gradients)


class Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Ctx, x: Tensor) -> Tensor:
        ctx.set_materialize_grads(True)
        return x * 2

    @staticmethod
    def backward(ctx: Ctx, gradient: Tensor) -> Tensor:
        return gradient * 2


def gradients(
    fn: Callable[[Tensor, Tensor], tuple[Tensor, ...]], used: tuple[int, ...], seed: int
) -> list[Any]:
    torch.manual_seed(seed)
    x, w = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    results = fn(x, w)
    torch.stack([results[i].sum() for i in used]).sum().backward()
    return [bits(t) for t in (*results, x.grad, w.grad)]


@pytest.mark.parametrize("function", [Both, WithSetup], ids=["forward", "setup_context"])
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)], ids=str)
def test_law_1_its_backward_is_given_none_where_eagers_is(
    function: Any, used: tuple[int, ...]
) -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return tuple(each * 1 for each in function.apply(x.exp(), w))

    compiled = torch.compile(fn, backend="gravure")
    for i in range(6):
        assert gradients(compiled, used, i) == gradients(fn, used, i), i
    assert "wants None for the gradient" in str(gravure.report())


def test_a_result_that_is_not_used_inside() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return (Both.apply(x, w)[0].sum(),)

    compiled = torch.compile(fn, backend="gravure")
    for i in range(6):
        assert gradients(compiled, (0,), i) == gradients(fn, (0,), i), i


def test_a_step_refuses_it_and_says_the_cure() -> None:
    w = torch.randn(4, requires_grad=True)
    step = gravure.compile_step(lambda x: Both.apply(x, w)[0].sum())
    with pytest.raises(ExportError, match="wants None .*leave set_materialize_grads"):
        step(torch.randn(4))


def test_zeros_that_are_asked_for_keep_the_graph_whole() -> None:
    compiled = torch.compile(lambda x: Plain.apply(x).sin(), backend="gravure", fullgraph=True)
    x = torch.randn(4, requires_grad=True)
    for _ in range(4):
        compiled(x).sum().backward()
    assert len(gravure.report().graphs) == 1

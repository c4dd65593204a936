"""Backwards that go without the gradients of some outputs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gravure.graphs.given_gradients import Form, with_given
from running import bits
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

ABSENT = (Form(absent=True),)


def traced(fn: Callable[..., tuple[Tensor, ...]], *args: Tensor) -> fx.GraphModule:
    return make_fx(fn, tracing_mode="fake")(*args)


def operators(module: fx.GraphModule) -> list[str]:
    return [node.target.__name__ for node in module.graph.nodes if node.op == "call_function"]


def test_a_sum_with_one_is_its_other_term_in_bits() -> None:
    def backward(saved: Tensor, loss: Tensor, scores: Tensor) -> tuple[Tensor, ...]:
        return ((loss * saved).view(6) + scores.detach().view(6).to(torch.float32),)

    given = torch.tensor([[0.0, -0.0, 1.0], [-2.0, 3.0, -0.0]]), torch.ones(2, 3)
    module = with_given(traced(backward, *given, torch.zeros(2, 3)), 2, ABSENT)
    assert module is not None and operators(module) == ["mul.Tensor", "view.default"]
    # A sum with zeros would have 0 for -0.
    assert bits(module(*given, torch.zeros(2, 3))[0]) == bits(given[0].view(6))


def test_what_takes_them_otherwise_gets_zeros() -> None:
    def backward(saved: Tensor, loss: Tensor, scores: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.cat([loss, scores.clone()]),
            torch.where(saved > 0, scores.view(3, 3), loss),
            scores,
        )

    given = torch.randn(3, 3), torch.randn(3, 3)
    module = with_given(traced(backward, *given, torch.randn(3, 3)), 2, ABSENT)
    assert module is not None
    found = module(*given, torch.full((3, 3), torch.nan))
    assert list(map(bits, found)) == list(map(bits, backward(*given, torch.zeros(3, 3))))


@pytest.mark.parametrize("strange", ["gaps", "open sizes"])
def test_it_is_left_where_zeros_cannot_be_made(strange: str) -> None:
    def backward(loss: Tensor, scores: Tensor) -> tuple[Tensor, ...]:
        return (torch.cat([loss, scores]),)

    scores = torch.zeros(3, 4)[:, :3] if strange == "gaps" else torch.zeros(3, 3)
    mode = "symbolic" if strange == "open sizes" else "fake"
    module = make_fx(backward, tracing_mode=mode)(torch.zeros(3, 3), scores)
    placeholders = module.graph.find_nodes(op="placeholder")
    assert with_given(module, len(placeholders) - 1, ABSENT) is None


def test_the_graph_that_is_given_stays_as_it_is() -> None:
    def backward(loss: Tensor, scores: Tensor) -> tuple[Tensor, ...]:
        return (loss + scores,)

    module = traced(backward, torch.ones(3), torch.ones(3))
    before = str(module.graph)
    assert with_given(module, 1, ABSENT) is not None
    assert str(module.graph) == before

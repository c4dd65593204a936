"""Arguments and gradients that are conjugated or negated when they are read: in eager's bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import gravure
import pytest
import torch
from running import need_library
from torch import Tensor

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "conj": lambda x: x.conj() * 2 + 1,
    "imag": lambda x: x.imag * 2 + 1,
    "real_of_conj": lambda x: torch.view_as_real(x.conj().clone())[..., 1] * 2 + 1,
    "adjoint": lambda x: (x.mH @ x).abs() + 1,
    "product": lambda x: (x @ x.mT) * 2,
    "negative": lambda x: torch._neg_view(x.real) * 2 + 1,
}
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "conj": lambda x: x.conj(),
    "adjoint": lambda x: x.mH,
    "in_turns": lambda x: x,  # conjugated in every other step
}


def _bits(x: Tensor) -> bytes:
    return bytes(x.detach().resolve_conj().resolve_neg().contiguous().view(torch.uint8).numpy())


def _replays() -> int:
    return sum(p.stats["replays"] for g in gravure.report().graphs for p in g.programs)


def _equal(found: Tensor, expected: Tensor) -> bool:
    return found.shape == expected.shape and _bits(found) == _bits(expected)


def _values(held: bool) -> Iterator[Tensor]:
    """Of twelve steps: all in the same memory, or each elsewhere."""
    torch.manual_seed(1)
    memory, earlier = torch.empty(3, 4, dtype=torch.complex64), []
    for _ in range(12):
        values = torch.randn(3, 4, dtype=torch.complex64)
        earlier.append(memory.copy_(values) if held else values)
        yield earlier[-1]


@pytest.mark.parametrize("held", [False, True], ids=["moves", "stays"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_argument(function: str, view: str, held: bool) -> None:
    fn = FUNCTIONS[function]
    compiled = torch.compile(fn, backend="gravure")
    for step, values in enumerate(_values(held)):
        x = values.conj() if view == "in_turns" and step % 2 else VIEWS[view](values)
        assert _equal(compiled(x), fn(x)), step
    assert _replays() > 0


@pytest.mark.parametrize("held", [False, True], ids=["moves", "stays"])
def test_a_negated_argument(held: bool) -> None:
    def fn(x: Tensor) -> Tensor:
        return torch._neg_view(x) * 2 + x

    compiled = torch.compile(fn, backend="gravure")
    for step, values in enumerate(_values(held)):
        x = values.conj().imag
        assert x.is_neg()
        assert _equal(compiled(x), fn(x)), step
    assert _replays() > 0


@pytest.mark.parametrize("conjugated", ["each", "none", "in_turns"])
def test_the_gradient_of_a_result(conjugated: str) -> None:
    def gradients(call: Callable[[Tensor], Tensor], step: int) -> list[Tensor]:
        torch.manual_seed(step)
        x = torch.randn(3, 4, dtype=torch.complex64, requires_grad=True)
        weight.grad = None
        turned = conjugated == "each" or (conjugated == "in_turns" and step % 3 == 2)
        given = torch.randn(3, 4, dtype=torch.complex64)
        call(x).backward(given.conj() if turned else given)
        assert x.grad is not None and weight.grad is not None
        return [x.grad, weight.grad]

    weight = torch.randn(4, 4, dtype=torch.complex64, requires_grad=True)

    def fn(x: Tensor) -> Tensor:
        return (x @ weight) * 2 + 1

    compiled = torch.compile(fn, backend="gravure")
    for step in range(12):
        expected = gradients(fn, step)
        found = gradients(compiled, step)
        assert all(map(_equal, found, expected)), step
    assert _replays() > 0

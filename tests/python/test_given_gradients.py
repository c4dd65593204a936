"""Backwards for gradients of outputs as they come: some never, some in another layout."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gravure.graphs.given_gradients import Form, Forms, forms_of, numbers_of, with_given
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


def lies(module: fx.GraphModule, name: str) -> list[tuple[int, ...]]:
    """The strides of what the call of that operator takes."""
    (node,) = [n for n in module.graph.nodes if n.op == "call_function" and name in str(n.target)]
    return [each.meta["val"].stride() for each in node.all_input_nodes]


TRANSPOSED = (Form(strides=(1, 4)),)


@torch.library.custom_op("given_gradients::rows", mutates_args=())
def _rows(x: Tensor) -> Tensor:
    return x.contiguous() * 2


_rows.register_fake(torch.empty_like)
_ATEN = torch.ops.aten


@pytest.mark.parametrize(
    ("call", "name", "strides"),
    [
        (lambda g: g.exp(), "exp", (1, 4)),
        (lambda g: g @ torch.ones(6, 6), "mm", (1, 4)),
        (lambda g: g.sum(0), "sum", (1, 4)),
        (lambda g: torch.fft.rfft(g, dim=0).real, "_fft_r2c", (1, 4)),
        (lambda g: _ATEN._softmax_backward_data(g, g, 1, torch.float32), "_softmax", (1, 4)),
        (lambda g: _ATEN.glu_backward(g[:, :3], g, 1), "glu_backward", (6, 1)),
        (lambda g: _ATEN.glu_backward(g[:, :3], g, 1), "glu_backward", (3, 1)),
        (_rows, "rows", (6, 1)),
        (lambda g: g.as_strided((2, 2), (6, 1)), "as_strided", (6, 1)),
        (lambda g: g.view(24), "view", (6, 1)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_takes_a_gradient_as_it_lies_and_what_a_copy(
    call: Callable[[Tensor], Tensor], name: str, strides: tuple[int, ...]
) -> None:
    module = traced(lambda g: (call(g),), torch.ones(4, 6))
    given = with_given(module, 0, TRANSPOSED)
    assert given is not None
    assert strides in lies(given, name)
    gradient = torch.randn(6, 4).t()
    assert gradient.stride() == TRANSPOSED[0].strides
    assert bits(given(gradient)[0]) == bits(call(gradient.contiguous()))
    result = given.graph.output_node().args[0][0]
    assert result.meta["val"].stride() == given(gradient)[0].stride()


def test_a_copy_lies_as_it_was_traced_also_behind_a_transpose() -> None:
    module = traced(lambda g: (_rows(g.t()),), torch.ones(4, 6))
    given = with_given(module, 0, TRANSPOSED)
    assert given is not None and lies(given, "rows") == [(4, 1)]
    assert operators(given) == ["t.default", "rows.default"]  # it is contiguous as it lies
    given = with_given(module, 0, (Form(strides=(12, 2)),))
    assert given is not None and lies(given, "rows") == [(1, 6)]


@pytest.mark.parametrize("strange", ["open sizes", "written"])
def test_there_is_none_for_other_strides(strange: str) -> None:
    def backward(g: Tensor) -> tuple[Tensor, ...]:
        return (g.mul_(2) if strange == "written" else g * 2,)

    mode = "symbolic" if strange == "open sizes" else "fake"
    module = make_fx(backward, tracing_mode=mode)(torch.ones(4, 6))
    first = len(module.graph.find_nodes(op="placeholder")) - 1
    assert with_given(module, first, TRANSPOSED) is None


@pytest.mark.parametrize(
    ("forms", "numbers"),
    [
        ((), [-2, -2]),
        ((Form(absent=True), Form()), [-1, -2]),
        ((Form(strides=(1, 4)), Form(absent=True)), [2, 1, 4, -1]),
        ((Form(strides=()), Form()), [0, -2]),
    ],
)
def test_forms_are_written_as_numbers_and_read_again(forms: Forms, numbers: list[int]) -> None:
    assert numbers_of(forms, 2) == numbers and forms_of(numbers) == forms


@pytest.mark.parametrize("aside", [torch.log, torch.sqrt, torch.rsqrt, lambda p: 1 / p])
def test_what_nobody_differentiates_makes_no_nan(aside: Callable[[Tensor], Tensor]) -> None:
    """Zeros behind an infinite derivative are NaN, with other backends in each step."""
    weight = torch.nn.Parameter(torch.arange(8.0))

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        p = weight * x
        return (p * 2).sum(), aside(p).transpose(0, 1)

    found = []
    for call in (fn, torch.compile(fn, backend="gravure")):
        for step in range(5):
            weight.grad = None
            call(torch.full((4, 8), 1.0 + step))[0].backward()
            found.append(bits(weight.grad))
    torch._dynamo.reset()
    assert found[:5] == found[5:]


@pytest.mark.parametrize(
    ("call", "operators_left"),
    [
        (lambda g, s: g / s, 0),
        (lambda g, s: g @ s, 0),
        (lambda g, s: torch.where(s > 0, g, 0.0), 0),
        (lambda g, s: torch.cat([g, g * s]).sum(0), 0),
        (lambda g, s: _ATEN.threshold_backward(g, s, 0), 0),
        (lambda g, s: g.new_zeros(3, 3).index_put((torch.tensor([1]),), g[0:1], True), 0),
        (lambda g, s: g.clamp(min=0.1), 1),  # not zero of zeros
        (lambda g, s: g.masked_fill(s > 0, 1.0), 1),
        (lambda g, s: torch.where(s > 0, g, 1.0), 1),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_nothing_is_computed_of_what_never_comes(
    call: Callable[[Tensor, Tensor], Tensor], operators_left: int
) -> None:
    def backward(saved: Tensor, loss: Tensor, aside: Tensor) -> tuple[Tensor, ...]:
        return (loss * saved + call(aside, saved),)

    given = torch.randn(3, 3), torch.randn(3, 3), torch.zeros(3, 3)
    module = with_given(traced(backward, *given), 1, (Form(), *ABSENT))
    assert module is not None
    names = operators(module)
    assert ("add.Tensor" in names) == bool(operators_left), names
    assert ("zeros.default" in names) == bool(operators_left), names
    found = module(*given[:2], torch.full((3, 3), torch.nan))[0]
    if operators_left:
        assert bits(found) == bits(backward(*given)[0])
    else:
        assert names[0] == "mul.Tensor" and len(names) == 1
        assert bits(found) == bits(given[0] * given[1])

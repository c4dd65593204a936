"""A branch on what code makes of numbers alone is taken while it is traced."""

from __future__ import annotations

from collections.abc import Callable

import gravure
import pytest
import torch
from running import bits, need_library
from torch import Tensor, nn

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


def packed(x: Tensor) -> Tensor:
    positions = torch.arange(x.shape[0]).unsqueeze(0)
    found = (torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    return x if (found[:, -1] == 0).all() else x * 2


def either(x: Tensor) -> Tensor:
    return x * (torch.zeros((), dtype=torch.int64) or torch.tensor(3))


def inverted(x: Tensor) -> Tensor:
    return x if not (~torch.ones(4, dtype=torch.bool)).any() else x * 2


def of_data(x: Tensor) -> Tensor:
    return x if (x > 0).all() else x * 2


def drawn(x: Tensor) -> Tensor:
    return x if torch.randint(0, 2, ()) > 0 else x * 2


def of_a_real(x: Tensor) -> Tensor:
    return x if torch.full((2,), 0.1).sum() > 0.2 else x * 2


def written_before(x: Tensor) -> Tensor:
    flags = torch.zeros(2, dtype=torch.bool)
    flags[0] = x[0] > 0
    return x if flags.any() else x * 2


def written_by_a_view(x: Tensor) -> Tensor:
    flags = torch.zeros(2, dtype=torch.bool)
    flags.view(-1).copy_(x[:2] > 0)
    return x if flags.any() else x * 2


def with_memory_of_its_own(x: Tensor) -> Tensor:
    flags = torch.empty(2, dtype=torch.int64)
    return x if flags.sum() == 5 else x * 2


@pytest.mark.parametrize("fn", [packed, either, inverted])
def test_the_graph_goes_on(fn: Callable[..., Tensor]) -> None:
    weight = nn.Parameter(torch.randn(4))
    x = torch.randn(4)
    expected = fn(x * weight).sum()
    compiled = torch.compile(lambda x: fn(x * weight).sum(), backend="gravure", fullgraph=True)
    step = gravure.compile_step(lambda x: fn(x * weight).sum())
    for _ in range(4):
        assert bits(compiled(x)) == bits(step(x)) == bits(expected)


@pytest.mark.parametrize(
    "fn",
    [of_data, drawn, of_a_real, written_before, written_by_a_view, with_memory_of_its_own],
)
def test_what_may_be_another_one_breaks_the_graph(fn: Callable[..., Tensor]) -> None:
    compiled = torch.compile(fn, backend="gravure", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="Data-dependent"):
        compiled(torch.randn(4))


def test_another_size_is_looked_at_anew() -> None:
    def fn(x: Tensor) -> Tensor:
        return x * 3 if torch.arange(x.shape[0]).sum() > 10 else x * 2

    compiled = torch.compile(fn, backend="gravure")
    for rows in (3, 8, 4, 9, 2, 8):
        x = torch.randn(rows)
        assert bits(compiled(x)) == bits(fn(x))


def test_other_backends_break_there() -> None:
    torch.compile(packed, backend="gravure")(torch.randn(4))
    with pytest.raises(torch._dynamo.exc.Unsupported, match="Data-dependent"):
        torch.compile(packed, backend="aot_eager", fullgraph=True)(torch.randn(4))

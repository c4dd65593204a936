"""Unpacking a tensor gives eager's bits, the sign of zeros included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gravure
import pytest
import torch
from running import bits, need_library
from torch import Tensor, nn

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


class Unpacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 8))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.weight
        return (q * x + k * -x + v * x).sum()


class Walked(Unpacked):
    def forward(self, x: Tensor) -> Tensor:
        total = x.new_zeros(())
        for row in self.weight:
            total = total + (row * x).sum()
        return total


def by_compile(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    compiled = torch.compile(model, backend="gravure", options={"on_missed": "raise"})
    for _ in range(4):
        model.zero_grad()
        loss = compiled(*inputs)
        loss.backward()
    return loss.detach()


def by_step(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    step = gravure.compile_step(model)
    for _ in range(4):
        model.zero_grad()
        loss = step(*inputs)
    return loss


@pytest.mark.parametrize("way", [by_compile, by_step])
@pytest.mark.parametrize("kind", [Unpacked, Walked])
def test_gradients_of_unpacked_tensors_have_the_bits_of_eager(
    kind: type[nn.Module], way: Callable[..., Any]
) -> None:
    model = kind()
    x = torch.tensor([0.0, -0.0, 1.0, -1.0] * 2)
    loss = model(x)
    loss.backward()
    expected = bits(loss), bits(model.weight.grad)
    assert (bits(way(model, (x,))), bits(model.weight.grad)) == expected


def test_the_gradient_of_an_unpacked_tensor_is_one_stack(tmp_path: Path) -> None:
    gravure.export_step(Unpacked(), (torch.ones(8),), tmp_path / "program")
    text = (tmp_path / "program" / "program.gv").read_text()
    assert "select_backward" not in text
    assert text.count("aten::stack") + text.count("aten::cat") == 1


def test_other_backends_are_traced_as_ever() -> None:
    torch.compile(Unpacked(), backend="gravure")(torch.ones(8))
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    torch.compile(Unpacked(), backend=backend)(torch.ones(8))
    assert "unbind" not in graphs[0].code

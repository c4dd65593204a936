"""What Dynamo takes apart has eager's bits: the sign of zeros, the rounding of products."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gravure
import pytest
import torch
from gravure.torch_api import further_guards
from running import bits, need_library
from torch import Tensor, nn

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


def test_what_is_looked_for_in_each_call_is_looked_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many modules ask for it: Dynamo keeps what is alike, and compares each with all."""
    found: list[Any] = []

    def install(*guards: Any, **rest: Any) -> None:
        found.extend(guards)
        plainly(*guards, **rest)

    plainly = further_guards.install_guard
    monkeypatch.setattr(further_guards, "install_guard", install)
    layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(9)))
    torch.compile(layers, backend="gravure")(torch.randn(2, 4))
    different = {(guard.name, guard.create_fn) for guard in found}
    assert len(found) > len(different) > 0
    assert len({*map(id, found)}) == len(different)


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


class Averaged(nn.Module):
    """Averages as optimizers have them, each written in one of the ways that Dynamo takes apart."""

    WAYS = ("add", "add_by_name", "addcmul", "addcdiv", "addcdiv_function", "lerp")

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.weight = nn.Parameter(torch.randn(64))
        self.register_buffer("average", torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.average.mul_(0.9)
            if self.way == "add":
                self.average.add_(x, alpha=0.1)
            elif self.way == "add_by_name":
                self.average.add_(alpha=0.1, other=x)
            elif self.way == "addcmul":
                self.average.addcmul_(x, x, value=0.1)
            elif self.way == "addcdiv":
                self.average.addcdiv_(x, self.weight, value=0.1)
            elif self.way == "addcdiv_function":
                self.average.copy_(torch.addcdiv(self.average, x, self.weight, value=0.1))
            else:
                torch._foreach_lerp_([self.average], [x], 0.1)
        return (self.weight * x + self.average).square().mean()


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


@pytest.mark.parametrize("by_step", [False, True])
@pytest.mark.parametrize("way", Averaged.WAYS)
def test_averages_have_the_bits_of_eager(way: str, by_step: bool) -> None:
    model = Averaged(way)
    twin = copy.deepcopy(model)
    run = gravure.compile_step(twin) if by_step else torch.compile(twin, backend="gravure")
    for i in range(6):
        torch.manual_seed(i)
        x = torch.randn(64)
        found = run(x)
        expected = model(x)
        expected.backward()
        if not by_step:
            found.backward()
        assert bits(twin.average) == bits(model.average)
        assert bits(found.detach()) == bits(expected.detach())
        assert bits(twin.weight.grad) == bits(model.weight.grad)


def test_a_number_that_is_a_tensor_is_not_read_on_the_host() -> None:
    def scaled(x: Tensor, by: Tensor) -> Tensor:
        return x.clone().add_(x, alpha=by)

    compiled = torch.compile(scaled, backend="gravure", options={"on_missed": "raise"})
    x, by = torch.randn(64), torch.tensor(0.5)
    assert bits(compiled(x, by)) == bits(scaled(x, by))
    (graph,) = gravure.report().graphs
    assert not graph.programs[0].host_nodes


def test_the_gradient_of_an_unpacked_tensor_is_one_stack(tmp_path: Path) -> None:
    gravure.export_step(Unpacked(), (torch.ones(8),), tmp_path / "program")
    text = (tmp_path / "program" / "program.gv").read_text()
    assert "select_backward" not in text
    assert text.count("aten::stack") + text.count("aten::cat") == 1


def test_other_backends_are_traced_as_ever() -> None:
    torch.compile(Unpacked(), backend="gravure")(torch.ones(8))
    averaged = Averaged("addcmul")
    torch.compile(averaged, backend="gravure")(torch.ones(64))
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    torch.compile(Unpacked(), backend=backend)(torch.ones(8))
    torch.compile(averaged, backend=backend)(torch.ones(64))
    assert "unbind" not in graphs[0].code
    assert "value" not in graphs[1].code

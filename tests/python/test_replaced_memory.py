"""Code that puts other memory in the place of a tensor's is eager's; a warning says where."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from gravure.errors import ExportError
from running import bits, need_library
from torch import Tensor

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


class Net(nn.Module):
    def __init__(self, replace: Callable[[Net, Tensor], None]) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)
        self.register_buffer("mean", torch.zeros(4, 4))
        self.register_buffer("other", torch.ones(4, 4))
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
        self.replace = replace

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.replace(self, x)
        found = self.query(self.body(x)).square().mean() + self.key(x).mean()
        return found + (x @ self.mean).mean()


def unit_rows(net: Net, _: Tensor) -> None:
    weight = net.query.weight
    weight.data = weight / weight.norm(dim=1, keepdim=True)


def momentum(net: Net, _: Tensor) -> None:
    net.key.weight.data = net.key.weight.data * 0.9 + net.query.weight.data * 0.1


def buffer(net: Net, _: Tensor) -> None:
    net.mean.data = net.mean * 0.9 + net.query.weight * 0.1


def argument(_: Net, x: Tensor) -> None:
    x.data = x.data * 2


def one_for_both(net: Net, _: Tensor) -> None:
    net.mean.data = net.other


def by_set(net: Net, _: Tensor) -> None:
    net.mean.set_(net.mean * 0.5 + net.query.weight)


WAYS = [unit_rows, momentum, buffer, argument, one_for_both, by_set]


def train(model: Net, call: Callable[[Tensor], Tensor]) -> list[Any]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = []
    for i in range(9):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(i))
        loss = call(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found += [bits(t.detach()) for t in (loss, x, *model.parameters(), *model.buffers())]
    return found


@pytest.mark.parametrize("replace", WAYS, ids=lambda way: way.__name__)
def test_law_2_it_has_eagers_memory_and_bits(
    replace: Callable[[Net, Tensor], None], caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    model = Net(replace)
    expected = train(twin := copy.deepcopy(model), twin)
    with caplog.at_level(logging.WARNING, "gravure"):
        found = train(model, torch.compile(model, backend="gravure"))
    assert found == expected
    if replace is not by_set:  # Dynamo ends the graph there
        assert f"a tensor gets other memory at {__name__}.py:" in caplog.text
        assert "copy_" in caplog.text


def test_what_the_function_calls_is_captured() -> None:
    """Only the function that does it is Python's."""
    torch.manual_seed(0)
    model, mean = Net(lambda net, _: None), torch.zeros(4)

    def forward(x: Tensor) -> Tensor:
        mean.data = mean + 1
        return model(x)  # type: ignore[no-any-return]

    compiled = torch.compile(forward, backend="gravure")
    for _ in range(6):
        compiled(torch.randn(3, 4)).backward()
    assert mean.tolist() == [6.0] * 4
    programs = [p for graph in gravure.report().graphs for p in graph.programs]
    assert sum(p.stats["replays"] for p in programs) > 0


def test_with_on_missed_it_is_an_error() -> None:
    model = Net(unit_rows)
    compiled = torch.compile(model, backend="gravure", options={"on_missed": "raise"})
    with pytest.raises(Exception, match="a tensor gets other memory at .*copy_"):
        compiled(torch.randn(3, 4))


@pytest.mark.parametrize("replace", [unit_rows, momentum])
def test_a_step_refuses_it(replace: Callable[[Net, Tensor], None]) -> None:
    model = Net(replace)
    before = [bits(t) for t in model.state_dict().values()]
    step = gravure.compile_step(model)
    with pytest.raises(ExportError, match="a tensor gets other memory at .*copy_"):
        step(torch.randn(3, 4))
    assert [bits(t) for t in model.state_dict().values()] == before

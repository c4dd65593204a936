"""Gravure's own functions, called inside of a compiled function: between two graphs, untraced."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from gravure.errors import ExportError
from running import bits, need_library
from torch import Tensor
from training import replays

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

OTHER = nn.Linear(4, 4)
CALLS: dict[str, Callable[[Tensor], Any]] = {
    "report": lambda x: gravure.report(),
    "explain": lambda x: gravure.explain(OTHER, (x,)),
    "drop_captures": lambda x: gravure.drop_captures(OTHER),
    "release_memory": lambda x: gravure.release_memory(),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_is_called_in_each_step_and_the_graphs_stay(name: str) -> None:
    model, seen = nn.Linear(4, 4), SimpleNamespace(last=None)

    def forward(x: Tensor) -> Tensor:
        y = model(x)
        seen.last = CALLS[name](x)
        return torch.tanh(y).sum()

    compiled = torch.compile(forward, backend="gravure")
    for i in range(7):
        x, seen.last = torch.randn(3, 4), None
        found, expected = compiled(x), torch.tanh(model(x)).sum()
        found.backward()
        assert bits(found) == bits(expected) and seen.last is not None, i
    report = gravure.report()
    # An int that it returns is another one behind the first call, for which Dynamo compiles anew.
    assert len(report.graphs) <= 3 and replays(report), report


def test_all_captures_may_be_dropped_there() -> None:
    model = nn.Linear(4, 4)

    def forward(x: Tensor) -> Tensor:
        y = model(x)
        gravure.drop_captures()
        return torch.tanh(y).sum()

    compiled = torch.compile(forward, backend="gravure")
    for i in range(7):
        x = torch.randn(3, 4)
        found, expected = compiled(x), torch.tanh(model(x)).sum()
        found.backward()
        assert bits(found) == bits(expected), i


def test_a_step_refuses_it() -> None:
    model = nn.Linear(4, 4)

    def loss(x: Tensor) -> Tensor:
        gravure.report()
        return model(x).sum()

    with pytest.raises(ExportError, match="report"):
        gravure.compile_step(loss)(torch.randn(3, 4))

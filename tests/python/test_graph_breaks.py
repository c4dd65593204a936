"""Where Dynamo ends a graph early, users are told in words that they can act on."""

from __future__ import annotations

import logging

import gravure
import pytest
import torch
import torch.nn as nn
from gravure.page.graph_words import read_break
from running import need_library
from torch import Tensor

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

_OWN_NAMES = ("generic_jump", "step_unsupported", "comprehension_graph_break")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)


class Branch(Model):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if x.sum() > 0:
            x = x * 2
        return self.second(x)


class Loop(Model):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        while x.abs().max() > 0.1:
            x = x * 0.5
        return self.second(x)


class InsideOfTry(Model):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        try:
            x = x * 2
            print(end="")
            x = x * 2
        except ValueError:
            pass
        return self.second(x)


class Asks(Model):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if not torch.compiler.is_compiling() and x.sum() > 0:
            x = x * 2
        return self.second(x)


def breaks_of(kind: type[Model]) -> list[str]:
    older = {graph.number for graph in gravure.report().graphs}
    compiled = torch.compile(kind(), backend="gravure")
    for _ in range(2):
        compiled(torch.randn(4, 8)).sum().backward()
    graphs = gravure.report().graphs
    return [g.graph_break for g in graphs if g.number not in older and g.graph_break]


@pytest.mark.parametrize(
    ("kind", "what", "remedy"),
    [
        (Branch, "Data-dependent branching", "torch.where"),
        (Loop, "Data-dependent branching", "torch.where"),
        (InsideOfTry, "the rest of the function runs without a graph", "outside of try"),
    ],
)
def test_a_break_says_what_it_is_and_what_to_write(
    kind: type[Model], what: str, remedy: str
) -> None:
    found = breaks_of(kind)
    assert found
    for text in found:
        read = read_break(text)
        assert read.location.startswith("test_graph_breaks.py:") and what in read.why
        assert remedy in read.remedy
        assert not any(name in text for name in _OWN_NAMES)


def test_code_that_asks_and_branches_in_the_compiled_function_itself_is_told_of_the_option(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "gravure"):
        found = breaks_of(Asks)
    assert found and "is_compiling=True" in found[0]
    assert found[0] in caplog.text

"""Where Dynamo ends a graph early, users are told in words that they can act on."""

from __future__ import annotations

import contextlib
import inspect
import logging
from pathlib import Path

import gravure
import pytest
import torch
import torch.nn as nn
from gravure.page.graph_words import read_break
from running import bits, need_library
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


@torch.compiler.disable
def disabled(x: Tensor) -> Tensor:
    return x + 1


class TriesFirst(Model):
    def forward(self, x: Tensor) -> Tensor:
        try:
            torch._dynamo.graph_break()  # ends here
            return self.first(x)
        finally:
            pass


class WithFirst(Model):
    def forward(self, x: Tensor) -> Tensor:
        with contextlib.suppress(ValueError):
            x = self.first(x)
            torch._dynamo.graph_break()  # ends here
        return x


class DisabledFirst(Model):
    def forward(self, x: Tensor) -> Tensor:  # ends here
        return disabled(x)


class DisabledWhole(Model):
    @torch.compiler.disable  # ends here
    def forward(self, x: Tensor) -> Tensor:
        return self.first(x)


@pytest.mark.usefixtures("unfrozen")
@pytest.mark.parametrize("kind", [TriesFirst, WithFirst, DisabledFirst, DisabledWhole])
def test_a_function_without_a_graph_is_named_with_its_line(
    kind: type[Model], tmp_path: Path
) -> None:
    """However one asks, before it runs and after it."""
    lines, first = inspect.getsourcelines(kind)
    line = first + next(i for i, text in enumerate(lines) if "ends here" in text)
    where = f"forward at test_graph_breaks.py:{line} is without a graph: "
    x = torch.randn(4, 8)
    assert where in str(gravure.explain(kind(), (x,)))
    torch._dynamo.reset()
    torch.compile(kind(), backend="gravure")(x)
    assert where in str(gravure.report()) and where in str(gravure.explain(kind(), (x,)))
    assert where.partition(" at ")[2].partition(" ")[0] in str(gravure.diagnose(kind(), x))
    (told,) = (text for text in gravure.report().skipped if where in text)
    assert "; take that off" in told or "; leave that call out" in told


def test_a_function_without_a_graph_is_told_of_its_own_model_alone() -> None:
    x = torch.randn(4, 8)
    torch.compile(TriesFirst(), backend="gravure")(x)
    torch.compile(WithFirst(), backend="gravure")(x)
    assert str(gravure.diagnose(WithFirst(), x)).count("is without a graph") == 1


def test_explain_names_the_line_of_a_break() -> None:
    found = gravure.explain(Branch(), (torch.randn(4, 8),))
    (text,) = found.graph_breaks
    assert text.startswith("test_graph_breaks.py:") and "\n" not in text
    assert f"graph break: {text}; torch.where" in str(found)


def test_a_size_that_depends_on_data_is_said_so() -> None:
    """Where AOTAutograd meets it, as in `x[mask] = y`, Dynamo speaks of an exception of ours."""

    def fn(x: Tensor, mask: Tensor, y: Tensor) -> Tensor:
        x = x * 2
        x[mask] = y.to(x.dtype)
        return x + 1

    x, mask, y = torch.randn(4, 8), torch.rand(4) > 0.5, torch.randn(8, requires_grad=True)
    assert bits(torch.compile(fn, backend="gravure")(x, mask, y)) == bits(fn(x, mask, y))
    assert "the size of what aten.nonzero makes depends on data" in str(gravure.report())


def test_a_call_under_vmap_that_has_later_calls_left_to_python() -> None:
    """PyTorch's way with any backend: the report says since when, and what takes it back."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x).tanh()

    model, x = Model(), torch.randn(5, 6)
    model.compile(backend="gravure")
    with torch.no_grad():
        torch.vmap(lambda row: model(row))(x)
    for _ in range(3):
        model(x).sum().backward()
    report = gravure.report()
    assert not report.graphs
    (said,) = [line for line in report.skipped if "functorch" in line]
    assert "torch.vmap" in said and "torch._dynamo.reset()" in said
    torch._dynamo.reset()
    model(x).sum().backward()
    assert gravure.report().graphs

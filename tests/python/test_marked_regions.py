"""Regions that Inductor compiled before a graph comes: torchtitan 0.3's, as its passes make them.

A program carries what only computes, in the bits of the graph as it came; all else keeps it out,
with a warning that says why.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gravure.calls.graph_passes import GraphPasses
from gravure.graphs.marked_regions import MarkedRegions
from running import need_library
from titan_model import replays
from torch import Tensor, fx
from torch._inductor.standalone_compile import AOTCompiledArtifact
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.regional_inductor import regional_inductor

need_library()
MARK = {"compile_with_inductor": {"inductor_configs": {}}}


def step(x: Tensor, weight: Tensor) -> list[Tensor]:
    """A loss, a gradient, and the middle of it normed, which becomes the region."""
    y = x @ weight
    normed = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
    loss = F.silu(normed).sum()
    return [loss, x.t() @ normed]


def draws(x: Tensor, weight: Tensor) -> list[Tensor]:
    y = x @ weight
    return [y.sum(), torch.bernoulli(torch.sigmoid(y)).rsqrt()]


def writes(x: Tensor, weight: Tensor) -> list[Tensor]:
    weight.rsqrt_()
    return [(x @ weight).sum(), x]


def marked(function: Callable[..., Any]) -> tuple[fx.GraphModule, tuple[Tensor, ...]]:
    args = torch.randn(8, 16), torch.rand(16, 8) + 1
    with FakeTensorMode() as mode:
        fakes = tuple(mode.from_tensor(a) for a in args)
        graph = make_fx(function)(*fakes)
    wanted = ("pow", "mean", "rsqrt", "mul", "add", "bernoulli", "rsqrt_")
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target.__name__.split(".")[0] in wanted:
            node.meta["custom"] = dict(MARK)
    return graph, args


class Code(AOTCompiledArtifact):
    """Stands for Inductor's code of a region, whose compiler takes a minute: the region itself."""

    __module__ = AOTCompiledArtifact.__module__

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module

    def __call__(self, *args: Any) -> Any:
        return self._module(*args)


@pytest.fixture(autouse=True)
def inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_it(module: fx.GraphModule, *_: Any, **__: Any) -> Code:
        return Code(fx.GraphModule(module, module.graph))

    monkeypatch.setattr(torch._inductor, "standalone_compile", compile_it)


def compiled(graph: fx.GraphModule) -> fx.GraphModule:
    """As torchtitan's regional_inductor_pass calls it."""
    fake = next(iter(graph.graph.nodes)).meta["val"].fake_mode
    with torch._guards.tracing(torch._guards.TracingContext(fake)):
        graph = regional_inductor(graph)
    graph.graph.set_codegen(torch.fx.graph.CodeGen())
    graph.recompile()
    return graph


@pytest.fixture
def passes() -> Iterator[GraphPasses]:
    made = GraphPasses()
    yield made
    made.shutdown()


@pytest.mark.usefixtures("fresh")
def test_a_region_that_computes_is_carried(passes: GraphPasses) -> None:
    graph, args = marked(step)
    regions = MarkedRegions()
    regions.note(graph, whole=False)
    graph = compiled(graph)
    expected = [t.clone() for t in graph(*args)]
    assert regions.allow(graph) == 1 and not regions.obstacle
    passes.configure({"on_missed": "raise", "min_partition_size": 1})
    ours = passes.step(graph, [1])
    for _ in range(5):
        found = ours(*args)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert [t.stride() for t in found] == [t.stride() for t in expected]
    assert replays() > 0


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("function", "why"), [(draws, "bernoulli.*draws"), (writes, "rsqrt_.*write")]
)
def test_a_region_that_does_more_is_not(
    passes: GraphPasses,
    caplog: pytest.LogCaptureFixture,
    function: Callable[..., Any],
    why: str,
) -> None:
    graph, args = marked(function)
    regions = MarkedRegions()
    regions.note(graph, whole=False)
    assert re.search(why, regions.obstacle)
    graph = compiled(graph)
    assert regions.allow(graph) == 1
    with caplog.at_level(logging.WARNING, "gravure"):
        ours = passes.step(graph, [])
    assert "runs as it is" in caplog.text
    plain = compiled(marked(function)[0])
    torch.manual_seed(1)
    expected = graph_results(plain, args)
    torch.manual_seed(1)
    assert all(map(torch.equal, graph_results(ours, args), expected))
    assert replays() == 0


def graph_results(graph: Any, args: tuple[Tensor, ...]) -> list[Tensor]:
    return [t.clone() for t in graph(*(a.clone() for a in args))]


def test_regions_that_nobody_looked_at_are_not_carried() -> None:
    """Those of torchtitan's precompiled artifacts."""
    graph = compiled(marked(step)[0])
    regions = MarkedRegions()
    assert regions.allow(graph) == 1
    assert "nobody knows" in regions.obstacle
    assert not any("gravure_carried" in node.meta for node in graph.graph.nodes)


def test_a_whole_graph_is_looked_at_without_marks() -> None:
    graph, _ = marked(writes)
    for node in graph.graph.nodes:
        node.meta.pop("custom", None)
    regions = MarkedRegions()
    regions.note(graph, whole=False)
    assert not regions.obstacle
    regions.note(graph, whole=True)
    assert "write" in regions.obstacle

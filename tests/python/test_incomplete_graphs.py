"""Graphs in which a pass has put nodes without examples of what they give."""

from __future__ import annotations

from collections.abc import Iterator

import gravure
import pytest
import torch
from gravure.calls.graph_passes import GraphPasses
from gravure.graphs.examples import complete_examples
from running import bits, need_library
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

need_library()
pytestmark = pytest.mark.usefixtures("fresh")
aten = torch.ops.aten


@torch.library.custom_op("incomplete::without_stand_in", mutates_args=())
def without_stand_in(x: Tensor) -> Tensor:
    return x + 1


def loss(x: Tensor, weight: Tensor) -> list[Tensor]:
    return [(torch.tanh(x @ weight) @ weight.t()).sum()]


def traced() -> tuple[fx.GraphModule, tuple[Tensor, ...]]:
    args = torch.randn(8, 16), torch.randn(16, 4)
    return make_fx(loss, tracing_mode="fake")(*args), args


def behind(graph: fx.GraphModule, target: object) -> fx.Node:
    (node,) = (n for n in graph.graph.nodes if n.target is target)
    graph.graph.inserting_after(node)
    return node


def split_and_join(graph: fx.GraphModule) -> list[fx.Node]:
    """Puts a split, its members and their sum behind tanh, without a word of their sizes."""
    node = behind(graph, aten.tanh.default)
    with graph.graph.inserting_after(node):
        parts = graph.graph.call_function(aten.split.Tensor, (node, 2, 1))
    with graph.graph.inserting_after(parts):
        first = graph.graph.call_function(torch.ops.aten.relu.default, (node,))
    with graph.graph.inserting_after(first):
        joined = graph.graph.call_function(aten.reshape.default, (first, [4, 8]))
    with graph.graph.inserting_after(joined):
        back = graph.graph.call_function(aten.reshape.default, (joined, [8, 4]))
    (product,) = (n for n in node.users if n.target is aten.mm.default)
    product.replace_input_with(node, back)
    graph.recompile()
    return [parts, first, joined, back]


@pytest.fixture
def passes() -> Iterator[GraphPasses]:
    made = GraphPasses()
    made.configure({"min_partition_size": 1})
    yield made
    made.shutdown()


def test_what_a_pass_has_put_in_is_captured_with_the_rest(passes: GraphPasses) -> None:
    graph, args = traced()
    split_and_join(graph)
    expected = bits(graph(*args))
    ours = passes.step(graph, [1])
    for _ in range(6):
        assert bits(ours(*args)) == expected
    (program,) = gravure.report().graphs[0].programs
    assert program.partitions == {"step": ["captured"]}
    assert program.host_nodes == {}
    assert program.stats["replays"] > 0


def test_examples_are_of_the_operands() -> None:
    graph, _ = traced()
    parts, *others = split_and_join(graph)
    complete_examples(graph)
    assert [tuple(part.shape) for part in parts.meta["val"]] == [(8, 2), (8, 2)]
    assert [tuple(n.meta["val"].shape) for n in others] == [(8, 4), (4, 8), (8, 4)]
    modes = {n.meta["val"].fake_mode for n in others}
    assert modes == {next(iter(graph.graph.nodes)).meta["val"].fake_mode}


def test_an_operator_without_a_stand_in_is_on_the_host(passes: GraphPasses) -> None:
    graph, args = traced()
    node = behind(graph, aten.tanh.default)
    users = list(node.users)
    with graph.graph.inserting_after(node):
        own = graph.graph.call_function(torch.ops.incomplete.without_stand_in.default, (node,))
    for user in users:
        user.replace_input_with(node, own)
    graph.recompile()
    expected = bits(graph(*args))
    complete_examples(graph)
    assert "val" not in own.meta
    ours = passes.step(graph, [1])
    for _ in range(6):
        assert bits(ours(*args)) == expected

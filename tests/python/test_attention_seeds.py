"""Memory-efficient attention reads its dropout's seed where its backward runs, not where it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gravure.graphs.attention_seeds import place_seeds, seeds_of
from gravure.graphs.compiled_regions import _Region
from gravure.graphs.known_numbers import KnownNumbers
from torch import fx

_BACKWARD = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default


def _graph(dropout: float) -> fx.Graph:
    graph = fx.Graph()
    taken = [graph.placeholder(name) for name in ("g", "q", "k", "v", "out", "lse", "seed", "off")]
    g, q, k, v, out, lse, seed, offset = taken
    mask = [True, True, True, False]
    made = graph.call_function(_BACKWARD, (g, q, k, v, None, out, lse, seed, offset, dropout, mask))
    graph.output(made)
    return graph


def _names(nodes: Any) -> set[str]:
    return {node.name for node in seeds_of(nodes)}


@pytest.mark.parametrize("dropout, expected", [(0.1, {"seed", "off"}), (0.0, set())])
def test_the_seeds_of_a_graph(dropout: float, expected: set[str]) -> None:
    assert _names(_graph(dropout).nodes) == expected


def test_the_seeds_of_a_graph_in_a_graph() -> None:
    inner = fx.GraphModule({}, _graph(0.1))
    graph = fx.Graph()
    held = graph.get_attr("inner")
    x = graph.placeholder("x")
    operands = [*[x] * 6, graph.placeholder("first"), graph.placeholder("second")]
    graph.output(
        graph.call_function(torch.ops.higher_order.invoke_subgraph, (held, "a", *operands))
    )
    assert _names(fx.GraphModule({"inner": inner}, graph).graph.nodes) == {"first", "second"}


def test_the_seeds_of_a_region_are_known_by_their_places_among_its_inputs() -> None:
    module = fx.GraphModule({}, _graph(0.1))
    for node in module.graph.find_nodes(op="placeholder"):
        node.meta["val"] = torch.empty(())
    call = module.graph.find_nodes(op="call_function", target=_BACKWARD)
    region = _Region(module, call, KnownNumbers(), always=True)
    assert [region.inputs[at].name for at in region.seeds()] == ["seed", "off"]
    region.put_last(region.inputs[:2])
    assert [region.inputs[at].name for at in region.seeds()] == ["seed", "off"]


def test_a_capture_takes_no_seed_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [torch.ones(2), torch.tensor(3)]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="its forward was not replayed"):
        place_seeds(tensors, [1])
    place_seeds(tensors, [])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    place_seeds(tensors, [1])
    assert tensors[1].is_cpu


def test_outside_of_a_capture_seeds_are_copied_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor of a device that is not there: that it was copied shows in what fails."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with pytest.raises(NotImplementedError, match="meta"):
        place_seeds([torch.empty((), device="meta")], [0])

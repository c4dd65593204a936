"""What Dynamo's graph is called, and the values that it takes."""

from __future__ import annotations

import re

import torch
from torch import fx

from ..graphs.names import FrameNamer, InputSpec, Namer
from ..torch_api.dynamo import compile_number, is_static, source_of
from .source_lines import Locations

_RESUMED = re.compile(r'File "([^"]+)", line \d+, in torch_dynamo_resume_in_.+_at_(\d+)$')


def input_spec(node: fx.Node, namer: Namer) -> InputSpec:
    """Role and name of an input of Dynamo's graph: what Dynamo calls static keeps its address."""
    name = source_of(node)
    example = node.meta.get("example_value")
    if not isinstance(example, torch.Tensor):
        role = "symint"
    elif not is_static(node):
        role = "user_input"
    else:
        role = "parameter" if example.requires_grad else "buffer"
    return InputSpec(role, namer.name(name) if name else node.name, None)


def label_of(graph: fx.GraphModule) -> str:
    """Which graph this is: "graph 0/1 at model.py:12", with Dynamo's number of it."""
    locations = Locations(FrameNamer())
    sources = (locations.source(n) for n in graph.graph.nodes if n.op != "placeholder")
    source = next((s for s in sources if s), "")
    return f"graph {compile_number()}" + (f" at {source}" if source else "")


def resumed_at(graph: fx.GraphModule) -> str:
    """The line of the graph break that it goes on behind: "model.py:12"; "" where it begins a
    function."""
    traces = (node.meta.get("stack_trace") for node in graph.graph.nodes)
    found = _RESUMED.search(next(filter(None, traces), "").partition("\n")[0])
    return Locations(FrameNamer()).line(found[1], found[2]) if found else ""

"""What Dynamo's graph is called, and the values that it takes."""

from __future__ import annotations

import torch
from torch import fx
from torch._guards import CompileContext

from ..graphs.names import FrameNamer, InputSpec, Namer
from .source_lines import Places


def input_spec(node: fx.Node, namer: Namer) -> InputSpec:
    """Role and name of an input of Dynamo's graph: what Dynamo calls static keeps its address."""
    source = getattr(node, "_dynamo_source", None)
    name = "" if source is None else source.name if isinstance(source.name, str) else source.name()
    kept = node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type")
    example = node.meta.get("example_value")
    if not isinstance(example, torch.Tensor):
        role = "symint"
    elif kept is None:
        role = "user_input"
    else:
        role = "parameter" if example.requires_grad else "buffer"
    return InputSpec(role, namer.name(name) if name else node.name, None)


def label_of(graph: fx.GraphModule) -> str:
    """Which graph this is: "graph 0/1 at model.py:12", with Dynamo's number of it."""
    number = CompileContext.current_compile_id()
    places = Places(FrameNamer())
    sources = (places.source(n) for n in graph.graph.nodes if n.op != "placeholder")
    source = next((s for s in sources if s), "")
    return f"graph {number}" + (f" at {source}" if source else "")

"""Where a graph puts other memory in the place of a tensor's, as `x.data = …` and `x.set_(…)` do.

AOTAutograd does that behind its graph, by a call of its own, and a program has no form of it: the
caller's tensor would keep its memory.
"""

from __future__ import annotations

from torch import fx

from ..graphs.names import FrameNamer
from ..text.source_lines import Locations

CURE = "write into the tensor (`x.copy_(…)`), or do it outside of the compiled function"
_REPLACE = ("set_", "shallow_copy_data_")  # from torch 2.14 on `.data =` is the second


def replaces_memory(graph: fx.GraphModule) -> str:
    """Which line of Dynamo's graph does, in words; "" where none does."""
    for module in graph.modules():
        for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
            if _name(node).partition(".")[0] in _REPLACE:
                line = Locations(FrameNamer()).source(node)
                at = f" at {line}" if line else ""
                return f"a tensor gets other memory{at}, by `x.data = …` or `x.set_(…)`"
    return ""


def _name(node: fx.Node) -> str:
    if node.op not in ("call_function", "call_method"):
        return ""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")

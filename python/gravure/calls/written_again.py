"""What eager does twice, and a graph once: a checkpointed part that writes into a buffer, or draws.

`torch.utils.checkpoint` runs its part once more in the backward, with what it writes: the running
statistics of a batch norm are updated twice, a counter counts twice. AOTAutograd takes writes out
of the part, and computes again what the backward needs and nothing else. So what calls such a part
is left to Python. A part that is compiled by itself is captured, with its writes, and run twice.

With `preserve_rng_state=False` eager draws other numbers the second time: the backward of a dropout
has another mask than its forward. AOTAutograd keeps the mask, and draws once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from torch import fx

from ..errors import ExportError
from ..graphs.names import FrameNamer
from ..graphs.node_facts import draws, higher_order_name, repeats_draws
from ..graphs.traced_graphs import TracedGraphs
from ..text.source_lines import Locations
from ..torch_api.aot_metadata import is_computed_again

CURE = (
    'compile each such part by itself (`part.compile(backend="gravure")`), or keep what writes '
    "into buffers out of it"
)
_CURE_OF_DRAWS = "leave out preserve_rng_state=False, with which the gradients are another mask's"
_SAID: set[tuple[str, str]] = set()
logger = logging.getLogger("gravure")


class WrittenAgain(ExportError):
    """A graph that would write or draw once what eager writes or draws twice."""


def refuse_repeated(
    label: str, dynamo: fx.GraphModule, joint: fx.GraphModule, values: Sequence[Any]
) -> None:
    """Raises WrittenAgain for such a part. `dynamo`: the graph that `joint` is AOTAutograd's of;
    `values`: of the arguments that it writes, behind it."""
    if again := written_again(joint, values):
        raise WrittenAgain(label, again, CURE)
    if again := drawn_again(dynamo, joint):
        raise WrittenAgain(label, again, _CURE_OF_DRAWS)


def drawn_again(dynamo: fx.GraphModule, graph: fx.GraphModule) -> str:
    """Where a checkpointed part of AOTAutograd's `graph` draws what eager draws anew, in words;
    "" where none does."""
    if not any(map(_keeps_no_state, _all_nodes(dynamo))):
        return ""
    for node in graph.graph.nodes:
        if repeats_draws(node) or (draws(node) and is_computed_again(node)):
            return (
                "a part under torch.utils.checkpoint with preserve_rng_state=False draws random "
                f"numbers{_at(node)}, and eager draws others in the backward"
            )
    return ""


def _all_nodes(module: fx.GraphModule) -> Iterator[fx.Node]:
    for each in module.modules():
        if isinstance(each, fx.GraphModule):
            yield from each.graph.nodes


def _keeps_no_state(node: fx.Node) -> bool:
    name = higher_order_name(node.target)
    return name == "tag_activation_checkpoint" and node.kwargs.get("preserve_rng_state") is False


def written_again(graph: fx.GraphModule, values: Sequence[Any]) -> str:
    """Where a checkpointed part of AOTAutograd's graph writes into a tensor from outside, in words;
    "" where none does. `values`: of the arguments that the graph writes, behind it."""
    copied = [node.args[1] for node in graph.graph.nodes if _copies_into_an_input(node)]
    for value in (*values, *copied):
        if isinstance(value, fx.Node) and is_computed_again(value):
            return (
                f"a part under torch.utils.checkpoint writes into a tensor from outside{_at(value)}"
                ", as a batch norm does into its statistics, and eager writes once more in the "
                "backward"
            )
    return ""


def warn_of_repeated(traced: TracedGraphs, name: str, dynamo: fx.GraphModule | None = None) -> None:
    """Of a program that has no Python around it, once for each function."""
    meta = traced.metadata
    if meta is None:
        return
    values = traced.forward.graph.output_node().args[0][: meta.before_results]
    cure = "keep what writes into buffers out of that part"
    again = written_again(traced.forward, values)
    if not again and dynamo is not None:
        again, cure = drawn_again(dynamo, traced.forward), _CURE_OF_DRAWS
    if again and (name, again) not in _SAID:
        _SAID.add((name, again))
        message = '%s: %s, and a program does not; %s, or take torch.compile(backend="gravure")'
        logger.warning(message, name, again, cure)


def _at(node: fx.Node) -> str:
    line = Locations(FrameNamer()).source(node)
    return f" at {line}" if line else ""


def _copies_into_an_input(node: fx.Node) -> bool:
    if getattr(node.target, "__name__", "") != "copy_.default":
        return False
    into = node.args[0]
    return isinstance(into, fx.Node) and into.op == "placeholder"

"""Writes that eager makes twice: a checkpointed part that writes into a buffer.

`torch.utils.checkpoint` runs its part once more in the backward, with what it writes: the running
statistics of a batch norm are updated twice, a counter counts twice. AOTAutograd takes writes out
of the part, and computes again what the backward needs and nothing else. So what calls such a part
is left to Python. A part that is compiled by itself is captured, with its writes, and run twice.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from torch import fx

from ..errors import ExportError
from ..graphs.names import FrameNamer
from ..graphs.traced_graphs import TracedGraphs
from ..text.source_lines import Locations
from ..torch_api.aot_metadata import is_computed_again

CURE = (
    'compile each such part by itself (`part.compile(backend="gravure")`), or keep what writes '
    "into buffers out of it"
)
_SAID: set[tuple[str, str]] = set()
logger = logging.getLogger("gravure")


class WrittenAgain(ExportError):
    """A graph that would write once what eager writes twice."""


def written_again(graph: fx.GraphModule, values: Sequence[Any]) -> str:
    """Where a checkpointed part of AOTAutograd's graph writes into a tensor from outside, in words;
    "" where none does. `values`: of the arguments that the graph writes, behind it."""
    copied = [node.args[1] for node in graph.graph.nodes if _copies_into_an_input(node)]
    for value in (*values, *copied):
        if isinstance(value, fx.Node) and is_computed_again(value):
            line = Locations(FrameNamer()).source(value)
            at = f" at {line}" if line else ""
            return (
                f"a part under torch.utils.checkpoint writes into a tensor from outside{at}, as a "
                "batch norm does into its statistics, and eager writes once more in the backward"
            )
    return ""


def warn_of_repeated_writes(traced: TracedGraphs, name: str) -> None:
    """Of a program that has no Python around it, once for each function."""
    meta = traced.metadata
    if meta is None:
        return
    values = traced.forward.graph.output_node().args[0][: meta.before_results]
    again = written_again(traced.forward, values)
    if again and (name, again) not in _SAID:
        _SAID.add((name, again))
        logger.warning(
            "%s: %s, and a program does not; keep what writes into buffers out of that part, or "
            'take torch.compile(backend="gravure")',
            name,
            again,
        )


def _copies_into_an_input(node: fx.Node) -> bool:
    if getattr(node.target, "__name__", "") != "copy_.default":
        return False
    into = node.args[0]
    return isinstance(into, fx.Node) and into.op == "placeholder"

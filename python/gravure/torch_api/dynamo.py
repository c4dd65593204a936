"""Dynamo: its settings while it traces for us, what it says of its graphs, its errors."""

from __future__ import annotations

import contextlib
import functools
import logging
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn
from unittest import mock

from torch import fx

from . import left_frames
from .discarded_output import silent_functions
from .effects_alone import to_the_call
from .private_names import (
    BackendCompilerFailed,
    CompileContext,
    FailOnRecompileLimitHit,
    SkipFrame,
    TorchDynamoException,
    TracingContext,
    _dynamo,
    dynamo_utils,
)

logger = logging.getLogger("gravure")

__all__ = [
    "BackendCompilerFailed",
    "FailOnRecompileLimitHit",
    "TorchDynamoException",
    "TracingContext",
    "break_of",
    "compile_number",
    "graph_breaks",
    "is_static",
    "recompile_limit",
    "runs_as_it_is",
    "source_of",
    "tracing_settings",
    "whole_graph",
    "with_one_input",
]

# BackendCompilerFailed, FailOnRecompileLimitHit, TorchDynamoException: its errors, told as
# ours. Without them users see Dynamo's, without our remedies.
# TracingContext: what Dynamo hands to AOTAutograd, and one is the key of a forward and its
# backward. Without it AOTAutograd's metadata cannot be read.


@contextlib.contextmanager
def tracing_settings(**further: Any) -> Iterator[None]:
    """Dynamo traces LSTMs, and leaves out what code says to people.

    Without them such functions break the graph.
    """
    settings = {"allow_rnn": True, "ignore_logging_functions": silent_functions(), **further}
    # PyTorch would log its settings as JSON, which functions are not.
    unlogged = mock.patch.object(dynamo_utils, "_get_dynamo_config_for_logging", str)
    with _dynamo.config.patch(settings), unlogged:
        yield


def whole_graph(fn: Callable[..., Any], backend: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` under Dynamo, as one graph or an error.

    torch.compile would do, but that it wraps a backend in guards of its own.
    """
    return _dynamo.optimize(backend, nopython=True)(fn)


def runs_as_it_is(why: str) -> NoReturn:
    """Ends the backend's part in what Dynamo compiles, with a warning, once for each `why`: Dynamo
    leaves the function to Python.

    By raising SkipFrame. Without it there is an error, which says `why`, too.
    """
    _warn(why)
    raise SkipFrame(why)


@functools.cache
def _warn(why: str) -> None:
    logger.warning('torch.compile(backend="gravure") compiles nothing: %s', why)


def compile_number() -> str:
    """Dynamo's number of the graph that is compiled: "0/1". Without it labels lack it."""
    left_frames.listen()
    return str(CompileContext.current_compile_id())


def source_of(node: fx.Node) -> str:
    """Where the value of a placeholder is found, as Dynamo writes it: "L['x']"; "" if unknown.

    Without it inputs have no names, and a step's parameters are passed in each call.
    """
    source = getattr(node, "_dynamo_source", None)
    if source is None:
        return ""
    return source.name if isinstance(source.name, str) else source.name()


def is_static(node: fx.Node) -> bool:
    """Whether Dynamo calls this placeholder static: it keeps its address.

    Without it every parameter is staged in each step.
    """
    return node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type") is not None


def with_one_input(graph: fx.GraphModule, first: Sequence[int]) -> fx.GraphModule:
    """A copy that takes what is one tensor once: for each input the position of the first same one.

    Without what Dynamo says of placeholders inputs have no names.
    """
    copied, values = fx.Graph(), dict[fx.Node, fx.Node]()
    copied.output(copied.graph_copy(graph.graph, values))
    for node, copy in values.items():
        if (source := getattr(node, "_dynamo_source", None)) is not None:
            copy._dynamo_source = source
    inputs = copied.find_nodes(op="placeholder")
    for node, i in zip(inputs, first, strict=True):
        if node is not inputs[i]:
            node.replace_all_uses_with(inputs[i])
            copied.erase_node(node)
    found = fx.GraphModule(graph, copied)
    found.meta.update(graph.meta)
    return found


class Break(NamedTuple):
    """Why Dynamo ended a graph before its function did, in one line, and the user's frames."""

    why: str
    details: str  # all that Dynamo says
    frames: list[traceback.FrameSummary]


# What Dynamo calls a break by a name of its own code, where it has words for it elsewhere.
_WORDS = {
    "generic_jump": "Data-dependent branching",
    "step_unsupported": "what no graph can go on behind, as inside of try or with: the rest of the "
    "function runs without a graph",
    "comprehension_graph_break": "inside of a comprehension",
}


def break_of(graph: fx.GraphModule) -> Break | None:
    """Why this graph ends early; None if it does not. Without it no report names graph breaks."""
    reason = getattr(graph, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return None
    name = reason.reason.partition(" ")[0]
    why = _WORDS.get(name) or left_frames.short_reason(reason.reason)
    return Break(why, reason.reason, to_the_call(reason.user_stack))


def graph_breaks() -> Counter[str]:
    """How often Dynamo broke a graph in this process, by reason. Without it none are explained."""
    return Counter(dynamo_utils.counters["graph_break"])


def recompile_limit() -> int:
    """How often Dynamo compiles one function, for an error to name."""
    return _dynamo.config.recompile_limit

"""Traces a function into AOTAutograd's forward and backward graphs.

Dynamo (fullgraph) finds what the function reads and keeps checkpointing, source lines and module
paths; AOTAutograd differentiates. Nothing of the user's is run, written or advanced.

The default partitioner is used, not the min-cut one: it saves what eager autograd saves, and
recomputes only what the user checkpointed. The min-cut one recomputes what Inductor could fuse,
which costs kernels in a program that runs operator by operator. No decomposition is applied, so
each operator is the one that eager runs, and gives its bits.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ..errors import ExportError
from ..torch_api.aot_autograd import graphs_alone
from ..torch_api.aot_metadata import (
    Kind,
    Metadata,
    current_metadata,
    forward_placeholders,
    metadata_of,
)
from ..torch_api.dynamo import TracingContext, source_of, tracing_settings, whole_graph
from ..torch_api.dynamo_errors import refusal
from ..torch_api.eager_tracing import must_trace_as_eager, traces_as_eager
from ..torch_api.operators import pytree
from ..torch_api.random_states import random_states_kept
from ..torch_api.step_settings import step_settings
from ..torch_api.whether_compiled import Answer
from .cached_casts import casts_as_eager
from .codegen import ATEN, Style
from .constants import reunite_constants
from .names import InputSpec, Namer, unique_names
from .traced_graphs import OutputSpec, TracedGraphs, backward_inputs, input_specs


@dataclass
class DynamoGraph:
    """Dynamo's graph of a function, and what its inputs and outputs are."""

    graph: fx.GraphModule | None = None
    inputs: list[Any] = field(default_factory=list)  # values
    sources: list[str] = field(default_factory=list)  # of each input, as Dynamo writes it
    examples: list[Any] = field(default_factory=list)  # stand-ins of the outputs
    markers: list[Any] = field(default_factory=list)  # what the function returned for them
    context: TracingContext | None = None


def trace(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    step: bool,
    paired_rng: bool,
    is_compiling: bool = False,
) -> TracedGraphs:
    """The forward and backward graphs of `fn(*args)`.

    With `step`, only the loss carries a gradient: everything else it returns is detached.
    `is_compiling` is what code is told that asks.
    """
    name = getattr(fn, "__name__", type(fn).__name__)
    if not callable(fn):
        raise ExportError(name, "it is not callable", "pass a function or a module")
    args = tuple(args)
    namer = Namer(fn, args)
    with random_states_kept(), ATEN.tracing():
        dynamo, result = _dynamo(fn, args, name, is_compiling)
        leaves = _leaves(result, name)
        outputs = _outputs(dynamo, leaves, name, step=step)
        _check_inputs(dynamo, namer)
        specs = [namer.spec(s, v) for s, v in zip(dynamo.sources, dynamo.inputs, strict=True)]
        return differentiate(dynamo, specs, outputs, name, namer, paired_rng)


def _dynamo(
    fn: Callable[..., Any], args: tuple[Any, ...], name: str, is_compiling: bool
) -> tuple[DynamoGraph, Any]:
    """Dynamo's graph of `fn(*args)`, and its result with a stand-in for each of its outputs."""
    dynamo = DynamoGraph()

    def backend(graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        dynamo.graph, dynamo.inputs = graph, list(inputs)
        dynamo.context = TracingContext.get()
        for node in graph.graph.find_nodes(op="placeholder"):
            dynamo.sources.append(source_of(node))
        values = output_node(graph).args[0]
        dynamo.examples = [_example(v) for v in values]
        dynamo.markers = [torch.zeros((), device="cpu") for _ in values]
        return lambda *_: dynamo.markers

    def call(*args: Any) -> Any:
        # A program takes its arguments in their order. From 2.12 on Dynamo has the order of their
        # first uses (test_runtime.py, bert).
        for value in args:
            if isinstance(value, torch.Tensor):
                value.dtype  # noqa: B018
        return fn(*args)

    # A code object of its own: Dynamo keeps what it compiled by code object.
    code = call.__code__.replace()
    fresh = types.FunctionType(code, call.__globals__, "call", None, call.__closure__)
    must_trace_as_eager()
    try:
        with tracing_settings(replay_side_effects=False, suppress_errors=False), step_settings:
            answer = Answer.TRUTH if is_compiling else Answer.EAGERS
            marked = traces_as_eager(backend, lambda _: answer)
            result = whole_graph(fresh, marked)(*args)
    except ExportError:
        raise
    except Exception as error:
        raise refusal(error, name) from error
    if dynamo.graph is None:
        raise ExportError(name, "it computes nothing with tensors", "return a loss")
    return dynamo, result


def output_node(graph: fx.GraphModule) -> fx.Node:
    return graph.graph.output_node()


def _example(value: Any) -> Any:
    return value.meta.get("example_value") if isinstance(value, fx.Node) else value


def _leaves(result: Any, name: str) -> list[tuple[str, Any]]:
    """What the function returned, by name, the loss first."""
    if isinstance(result, torch.Tensor):
        return [("loss", result)]
    if not isinstance(result, (tuple, list)) or not result:
        kind = type(result).__name__
        raise ExportError(
            name,
            f"it returns a {kind}, not a tensor",
            "return the loss, or a tuple that begins with it",
        )
    if not isinstance(result[0], torch.Tensor):
        kind = type(result[0]).__name__
        raise ExportError(
            name, f"its first result is a {kind}, not a tensor", "return the loss first"
        )
    leaves = [("loss", result[0])]
    for i, member in enumerate(result[1:], 1):
        for path, leaf in pytree.tree_flatten_with_path(member)[0]:
            keys = [str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path]
            leaves.append((".".join(keys) or f"output{i}", leaf))
    return leaves


def _outputs(
    dynamo: DynamoGraph, leaves: list[tuple[str, Any]], name: str, *, step: bool
) -> list[OutputSpec]:
    """Orders the graph's outputs by `leaves`, the loss first, and says what each leaf is.

    With `step` all but the loss are detached.
    """
    assert dynamo.graph is not None
    found = {id(p): i for i, p in enumerate(dynamo.markers)}
    inputs = {id(v): i for i, v in enumerate(dynamo.inputs) if isinstance(v, torch.Tensor)}
    outputs: list[OutputSpec] = []
    returned: list[int] = []
    for leaf_name, leaf in leaves:
        at = found.get(id(leaf))
        if at is not None:
            if at not in returned:
                returned.append(at)
            outputs.append(OutputSpec(leaf_name, index=returned.index(at)))
        elif id(leaf) in inputs:
            outputs.append(OutputSpec(leaf_name, input=inputs[id(leaf)]))
        elif not outputs:
            raise ExportError(name, "the loss does not depend on any input", "compute it from them")
    if outputs[0].input >= 0:
        raise ExportError(name, "the loss is one of its inputs", "compute the loss in the function")
    check_loss(dynamo.examples[returned[0]], name, step=step)
    graph = dynamo.graph.graph
    end = output_node(dynamo.graph)
    values = [end.args[0][i] for i in returned]
    if step:
        with graph.inserting_before(end):
            for i, at in enumerate(returned):
                if i and getattr(dynamo.examples[at], "requires_grad", False):
                    values[i] = graph.call_method("detach", (values[i],))
    end.args = (tuple(values),)
    dynamo.graph.recompile()
    return outputs


def _clone_loss(graph: fx.GraphModule) -> None:
    end = output_node(graph)
    with graph.graph.inserting_before(end):
        loss = graph.graph.call_method("clone", (end.args[0][0],))
    end.args = ((loss, *end.args[0][1:]),)
    graph.recompile()


def check_loss(loss: Any, name: str, *, step: bool) -> None:
    """Raises ExportError for what has no gradient; with `step` for more than one number, too."""
    if not isinstance(loss, torch.Tensor):
        raise ExportError(name, "the loss is a number, not a tensor", "leave out .item()")
    if not loss.requires_grad:
        raise ExportError(
            name,
            "the loss does not require a gradient",
            "let a parameter that requires one reach it, and leave out no_grad() and detach()",
        )
    if step and loss.numel() != 1:
        shape = list(loss.shape)
        raise ExportError(name, f"the loss has shape {shape}", "reduce it, with .mean() or .sum()")


def _check_inputs(dynamo: DynamoGraph, namer: Namer) -> None:
    for source, value in zip(dynamo.sources, dynamo.inputs, strict=True):
        if not isinstance(value, torch.Tensor):
            continue
        name = namer.name(source)
        if not source.startswith(("L[", "G[")) and not source.endswith(")"):
            raise ExportError(
                name,
                "Python's random module draws it anew each step",
                "draw it with torch, or pass it as a tensor",
            )
        if "L['args']" in source and not source.startswith("L["):
            raise ExportError(name, f"an argument becomes a tensor by {source}", "pass a tensor")
        if value.requires_grad and not value.is_leaf:
            raise ExportError(
                name,
                "it requires a gradient and was computed outside of the function",
                "compute it inside, or detach it",
            )
        if type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            kind = type(value).__name__
            raise ExportError(name, f"it is a tensor subclass, {kind}", "pass plain tensors")
        if value.layout is not torch.strided:
            raise ExportError(name, f"its layout is {value.layout}", "pass a dense tensor")


def differentiate(
    dynamo: DynamoGraph,
    arguments: Sequence[InputSpec],
    outputs: Sequence[OutputSpec],
    name: str,
    namer: Namer,
    paired_rng: bool,
    style: Style = ATEN,
) -> TracedGraphs:
    """AOTAutograd's forward and backward; the first output is the loss."""
    forward, backward, metadata = _aot(dynamo, name, paired_rng, style)
    if not metadata.results[0].is_new:
        # The tangent of a view belongs to its base: give the loss memory of its own.
        assert dynamo.graph is not None
        _clone_loss(dynamo.graph)
        forward, backward, metadata = _aot(dynamo, name, paired_rng, style)
    for each in forward_placeholders(forward, metadata.tokens):
        if each.kind is Kind.OTHER and each.what:
            raise ExportError(
                each.node_name,
                "two of its inputs share memory, and one of them is written",
                "pass tensors that do not overlap",
            )
    inputs = input_specs(forward, metadata.tokens, unique_names(arguments), states=True)
    return TracedGraphs(
        name,
        namer,
        forward,
        backward,
        inputs,
        *backward_inputs(backward, states=True),
        metadata.own_results,
        metadata,
        tuple(outputs),
        len(arguments),
    )


def _aot(
    dynamo: DynamoGraph, name: str, paired_rng: bool, style: Style
) -> tuple[fx.GraphModule, fx.GraphModule, Metadata]:
    assert dynamo.graph is not None
    graphs: dict[str, Any] = {}

    def forward(graph: fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs["forward"], graphs["metadata"] = graph, current_metadata()
        return lambda *args: None

    def backward(graph: fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs["backward"] = graph
        return lambda *args: None

    try:
        with casts_as_eager(dynamo.graph, dynamo.inputs), style.tracing():
            graphs_alone(
                dynamo.graph,
                dynamo.inputs,
                dynamo.context,
                forward=forward,
                backward=backward,
                cut=style.partition,
                decompositions=style.decompositions,
                paired_draws=paired_rng,
            )
    except Exception as error:
        raise refusal(error, name) from error
    if "backward" not in graphs:
        raise ExportError(name, "it has no backward graph", "let the loss depend on a parameter")
    reunite_constants(graphs["forward"], graphs["backward"])
    return graphs["forward"], graphs["backward"], metadata_of(graphs["metadata"])

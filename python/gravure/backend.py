"""`torch.compile(model, backend="gravure")`: AOTAutograd's forward and backward as one program."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from .calls.compiled_graph import CompiledGraph
from .calls.frame import compile_frame
from .calls.graph_break import graph_break_of
from .calls.live_graphs import drop_converted, follow
from .drop_captures import drop_captures
from .graphs.codegen import Style, in_first_style
from .library.load import program_class
from .options import CompileOptions
from .text.dynamo_graph import label_of
from .torch_api.autograd import saved_tensor_hooks_are_set
from .torch_api.dispatch import in_autocast
from .torch_api.eager_tracing import traces_as_eager
from .torch_api.fake_tensors import FakeTensor

logger = logging.getLogger("gravure")


@traces_as_eager
def compile_graph(
    graph: fx.GraphModule,
    inputs: list[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Dynamo's graph as a program that is warmed up, captured and replayed.

    `mode` is short for that option alone. Raises ValueError for an option that there is not;
    ExportError, with `on_missed="raise"`, for a graph that cannot become a program. Without it such
    a graph runs as it is, with a warning.
    """
    if mode is not None:
        options = {"mode": mode}  # torch.compile takes one of them alone
    drop_converted()
    chosen = CompileOptions.parse(options)
    if chosen.results == "accumulate":
        raise ValueError(
            "option 'results': autograd adds the gradients of a compiled model; \"accumulate\" is "
            "for compile_step and load"
        )
    if chosen.stretches == "undivided":
        raise ValueError(
            "option 'stretches': autograd runs between forward and backward of a compiled model; "
            '"undivided" is for compile_step'
        )
    program_class()
    symbolic = any(isinstance(value, torch.SymInt) for value in inputs)
    bundles = not symbolic and not saved_tensor_hooks_are_set()
    label = label_of(graph)
    maker = functools.partial(_followed, graph_break=graph_break_of(graph, label))
    of_style = functools.partial(compile_frame, graph, chosen=chosen, maker=maker, bundles=bundles)

    def compiled(inputs: Sequence[Any], *, symbolic: bool, in_autocast: bool) -> Callable[..., Any]:
        make = functools.partial(of_style, inputs, in_autocast=in_autocast)
        return in_first_style(chosen, label, lambda style: make(style=style), symbolic=symbolic)

    behind = compiled(inputs, symbolic=symbolic, in_autocast=False)
    if not torch.is_grad_enabled() or not in_autocast():
        return behind
    inside = functools.partial(compiled, symbolic=False, in_autocast=True)
    return _as_its_backward(graph, behind, inside, label)


# torch._dynamo.reset() and torch.compiler.reset() call it.
compile_graph.reset = drop_captures


def _followed(
    label: str, options: CompileOptions, style: Style, *, graph_break: str
) -> CompiledGraph:
    graph = CompiledGraph(label, options, style)
    graph.graph_break = graph_break
    follow(graph)
    return graph


def _as_its_backward(
    graph: fx.GraphModule,
    behind: Callable[..., Any],
    inside: Callable[[Sequence[Any]], Callable[..., Any]],
    label: str,
) -> Callable[..., Any]:
    """Of a graph that is called under autocast: `behind`, whose backward runs without, or `inside`.

    As eager's does, by where it is called. The first call shows where: it runs the graph as it is.
    """
    found: list[bool] = []  # whether the first call's backward was under autocast
    chosen: Callable[..., Any] | None = None
    first = True

    def note(_: torch.Tensor) -> None:
        found.append(in_autocast())

    def run(*args: Any) -> Any:
        nonlocal chosen, first
        if chosen is not None:
            return chosen(*args)
        if first and not any(isinstance(arg, FakeTensor) for arg in args):
            first = False
            results = graph(*args)
            for result in results:
                if isinstance(result, torch.Tensor) and result.requires_grad:
                    result.register_hook(note)
            return results
        if not found:
            return behind(*args)
        chosen = behind
        if found[0]:
            logger.info("%s: its backward is called under autocast: a second program", label)
            try:
                chosen = inside(args)
            except Exception as error:  # then each backward warns
                logger.debug("%s: not compiled in a call: %r", label, error)
        return chosen(*args)

    return run

"""`torch.compile(model, backend="gravure")`: AOTAutograd's forward and backward as one program."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from .calls.compiled_graph import CompiledGraph
from .calls.frame import FrameCall, FrameRequest
from .calls.graph_break import graph_break_of
from .calls.live_graphs import drop_converted, follow
from .drop_captures import drop_captures
from .errors import ExportError
from .graphs.codegen import Style, in_first_style
from .graphs.devices import give_back_cache
from .library.load import program_class
from .options import CompileOptions
from .text.dynamo_graph import label_of
from .torch_api.autograd import saved_tensor_hooks_are_set
from .torch_api.dispatch import in_autocast
from .torch_api.dynamo import runs_as_it_is
from .torch_api.eager_tracing import must_trace_as_eager, traces_as_eager
from .torch_api.fake_tensors import FakeTensor
from .torch_api.optimizers import leave_functions_alone, steps_optimizer
from .torch_api.private_names import MissingName
from .torch_api.split_backward import refuse_split_backward

logger = logging.getLogger("gravure")

_OPTIMIZER = (
    "an optimizer's step has other bits than eager's when Dynamo traces it, so it is eager's"
)


def _given(options: Mapping[str, Any] | None, mode: str | None) -> Mapping[str, Any] | None:
    return options if mode is None else {"mode": mode}  # torch.compile takes one of them alone


def _options(options: Mapping[str, Any] | None) -> CompileOptions:
    """Raises ValueError for what is no option, or none of a compiled model's."""
    chosen = CompileOptions.parse(options)
    if chosen.results == "accumulate":
        raise ValueError(
            "option 'results': autograd adds the gradients of a compiled model; \"accumulate\" is "
            "for compile_step and load"
        )
    if chosen.regions == "undivided":
        raise ValueError(
            "option 'regions': autograd runs between forward and backward of a compiled model; "
            '"undivided" is for compile_step'
        )
    return chosen


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
    a graph runs as it is, with a warning; and so does the function itself, where this torch lacks
    what graphs are made with.
    """
    options = _given(options, mode)
    drop_converted()
    refuse_split_backward()
    chosen = _options(options)
    if steps_optimizer(graph):
        if chosen.on_missed == "raise":
            raise ExportError("its optimizer", _OPTIMIZER, "call gravure.compile_optimizer")
        leave_functions_alone()
        runs_as_it_is(f"{_OPTIMIZER}; gravure.compile_optimizer(optimizer) captures its step")
    try:
        must_trace_as_eager()
        return _compiled(graph, inputs, chosen)
    except MissingName as error:
        if chosen.on_missed == "raise":
            raise
        runs_as_it_is(str(error))


def _compiled(
    graph: fx.GraphModule, inputs: list[Any], chosen: CompileOptions
) -> Callable[..., Any]:
    program_class()
    symbolic = any(isinstance(value, torch.SymInt) for value in inputs)
    bundles = not symbolic and not saved_tensor_hooks_are_set()
    label = label_of(graph)
    maker = functools.partial(_followed, graph_break=graph_break_of(graph, label))
    request = FrameRequest(graph, label, chosen, maker)
    behind = _in_first_style(request, inputs, symbolic=symbolic, bundles=bundles)
    if not torch.is_grad_enabled() or not in_autocast():
        return behind
    inside = replace(request, in_autocast=True)
    return AutocastCall(behind, inside, bundles=bundles)


def _in_first_style(
    request: FrameRequest, inputs: Sequence[Any], *, symbolic: bool, bundles: bool
) -> FrameCall:
    def make(style: Style) -> FrameCall:
        return replace(request, style=style).compile(inputs, bundles=bundles)

    return in_first_style(request.options, request.label, make, symbolic=symbolic)


def _check(*, options: Mapping[str, Any] | None = None, mode: str | None = None) -> None:
    _options(_given(options, mode))


# torch._dynamo.reset() and torch.compiler.reset() call it.
compile_graph.reset = drop_captures
# torch.compile() calls it, where it is called (torch_api/registration.py).
compile_graph.gravure_check = _check


def _followed(
    label: str, options: CompileOptions, style: Style, *, graph_break: str
) -> CompiledGraph:
    graph = CompiledGraph(label, options, style)
    graph.graph_break = graph_break
    follow(graph)
    return graph


class AutocastCall:
    """A graph that is called under autocast: its backward runs without, or under it, as eager's
    does, by where it is called. The first call shows where: it runs the graph as it is."""

    def __init__(self, behind: FrameCall, inside: FrameRequest, *, bundles: bool) -> None:
        """`behind`: whose backward runs without. `inside`: to be compiled if it runs under it."""
        self._behind = behind
        self._inside = inside
        self._bundles = bundles
        self._was_called = False
        self._keeps_cache = False  # PyTorch's allocator, for the first call
        self._found: list[bool] = []  # whether the first call's backward was under autocast
        self._chosen: FrameCall | None = None

    def __call__(self, *args: Any) -> Any:
        if self._chosen is None:
            if not self._was_called and not any(isinstance(arg, FakeTensor) for arg in args):
                return self._as_it_is(args)
            if self._keeps_cache:
                self._keeps_cache = False
                give_back_cache(args)
            if not self._found:
                return self._behind(*args)
            self._chosen = self._choose(args)
        return self._chosen(*args)

    def _as_it_is(self, args: Sequence[Any]) -> Any:
        self._was_called = self._keeps_cache = True
        found = self._found

        def note(_: torch.Tensor) -> None:
            found.append(in_autocast())

        results = self._inside.graph(*args)
        for result in results:
            if isinstance(result, torch.Tensor) and result.requires_grad:
                result.register_hook(note)
        return results

    def _choose(self, args: Sequence[Any]) -> FrameCall:
        if not self._found[0]:
            return self._behind
        label = self._inside.label
        logger.info("%s: its backward is called under autocast: a second program", label)
        try:
            return _in_first_style(self._inside, args, symbolic=False, bundles=self._bundles)
        except Exception as error:  # then each backward warns
            logger.debug("%s: not compiled in a call: %r", label, error)
            return self._behind

"""`torch.compile(model, backend="gravure")`: AOTAutograd's forward and backward as one program."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx

from .calls.autocast_call import AutocastCall
from .calls.frame import FrameRequest
from .calls.graph_break import as_told, graph_break_of
from .calls.live_graphs import drop_converted
from .calls.replaced_memory import CURE, replaces_memory
from .calls.step_clock import StepClock
from .calls.written_again import WrittenAgain
from .drop_captures import drop_captures
from .errors import ExportError
from .graphs.cached_casts import has_reentrant_part
from .graphs.codegen import load_compiler, make_ready
from .library.load import program_class
from .library.progress import under_way
from .options import CompileOptions
from .page.graph_words import frame_of, read_break, with_remedy
from .text.dynamo_graph import label_of, resumed_at
from .torch_api.aot_errors import is_of_aot
from .torch_api.autograd import saved_tensor_hooks_are_set
from .torch_api.compilations import surround_compilations
from .torch_api.dispatch import in_autocast
from .torch_api.dynamo import runs_as_it_is
from .torch_api.dynamo_errors import first_line
from .torch_api.eager_tracing import must_trace_as_eager, traces_as_eager
from .torch_api.left_frames import forget
from .torch_api.optimizers import leave_functions_alone, steps_optimizer
from .torch_api.private_names import MissingName
from .torch_api.split_backward import refuse_split_backward
from .torch_api.whether_compiled import Answer

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


def _by_keywords(keywords: Mapping[str, Any]) -> CompileOptions:
    try:
        return _options(_given(keywords.get("options"), keywords.get("mode")))
    except (TypeError, ValueError):  # the backend says it
        return CompileOptions()


def _answer(keywords: Mapping[str, Any]) -> Answer:
    """What code is told that asks whether it is compiled."""
    return _by_keywords(keywords).answer


def _has_eagers_bits(keywords: Mapping[str, Any]) -> bool:
    return _by_keywords(keywords).has_eagers_bits


@contextlib.contextmanager
def _around(what: str, keywords: Mapping[str, Any]) -> Iterator[None]:
    """Around a compilation by Dynamo."""
    make_ready(_by_keywords(keywords))
    with under_way(what):
        yield


@partial(traces_as_eager, answer=_answer, has_eagers_bits=_has_eagers_bits)
def compile_graph(
    graph: fx.GraphModule,
    inputs: list[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Dynamo's graph as a program that is warmed up, captured and replayed.

    `mode` is short for `options={"mode": mode}`. Raises ValueError for an option that there is not;
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
    if replaced := replaces_memory(graph):
        if chosen.on_missed == "raise":
            raise ExportError(label_of(graph), replaced, CURE)
        runs_as_it_is(f"{replaced}; {CURE}")
    try:
        must_trace_as_eager()
        return _compiled(graph, inputs, chosen)
    except WrittenAgain as error:
        if chosen.on_missed == "raise":
            raise
        runs_as_it_is(f"{error.node}: {error.reason}; {error.remedy}")
    except MissingName as error:
        if chosen.on_missed == "raise":
            raise
        runs_as_it_is(str(error))


def _compiled(
    graph: fx.GraphModule, inputs: list[Any], chosen: CompileOptions
) -> Callable[..., Any]:
    program_class()
    make_ready(chosen)
    label = label_of(graph)
    ends = with_remedy(graph_break_of(graph, label))
    chosen = as_told(chosen, label)
    clock = None
    if chosen.is_timed:
        ends_at, resumes_at = read_break(ends).location, resumed_at(graph)
        clock = StepClock(frame_of(label), ends_at=ends_at, resumes_at=resumes_at)
    request = FrameRequest(graph, label, chosen, graph_break=ends, clock=clock)
    call = _call_of(request, inputs)
    surround_compilations(compile_graph, _around)  # Dynamo's reset forgets it
    return call if clock is None else clock.around(call)


def _call_of(request: FrameRequest, inputs: list[Any]) -> Callable[..., Any]:
    symbolic = any(isinstance(value, torch.SymInt) for value in inputs)
    bundles = not symbolic and not saved_tensor_hooks_are_set()
    try:
        call = request.compile_in_first_style(inputs, symbolic=symbolic, bundles=bundles)
    except Exception as error:
        if request.options.raises or not is_of_aot(error):
            raise
        why = f"AOTAutograd cannot differentiate it: {first_line(error)}"
        return request.left_to_eager(f"{why}; keep that out of it with torch.compiler.disable")
    if not torch.is_grad_enabled() or not in_autocast() or has_reentrant_part(request.graph):
        return call
    return AutocastCall(call, replace(request, in_autocast=True), inputs, bundles=bundles)


def _check(*, options: Mapping[str, Any] | None = None, mode: str | None = None) -> None:
    load_compiler(_options(_given(options, mode)))
    surround_compilations(compile_graph, _around)


def _reset() -> None:
    drop_captures()
    forget()


# torch._dynamo.reset() and torch.compiler.reset() call it.
compile_graph.reset = _reset
# torch.compile() calls it, where it is called (torch_api/registration.py).
compile_graph.gravure_check = _check

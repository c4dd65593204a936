"""Dynamo's graph, differentiated by AOTAutograd, in the hands of what runs it."""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ..graphs.codegen import ATEN, Style
from ..graphs.constants import fold_constants
from ..graphs.names import FrameNamer, InputSpec, unique_names
from ..graphs.saved_bundle import bundle_saved
from ..graphs.traced_graphs import TracedGraphs, backward_inputs, input_specs
from ..options import CompileOptions
from ..text.dynamo_graph import input_spec, label_of
from ..text.entry_call import picker
from ..torch_api import dispatch
from ..torch_api.aot_autograd import with_autograd
from ..torch_api.aot_metadata import (
    allow_retain_graph,
    current_metadata,
    current_tokens,
    metadata_of,
)
from ..torch_api.autograd import saved_tensor_hooks_are_set
from ..torch_api.compile_lock import one_at_a_time
from ..torch_api.fake_tensors import FakeTensor
from .compiled_graph import CompiledGraph

logger = logging.getLogger("gravure")

# Makes what runs a graph.
Maker = Callable[[str, CompileOptions, Style], CompiledGraph]


@one_at_a_time
def compile_frame(
    graph: fx.GraphModule,
    inputs: Sequence[Any],
    chosen: CompileOptions,
    maker: Maker,
    style: Style = ATEN,
    *,
    label: str = "",
    bundles: bool = False,
    in_autocast: bool = False,
) -> Callable[..., Any]:
    """Dynamo's graph, differentiated by AOTAutograd, in the hands of what `maker` makes.

    `bundles`: what only the backward reads passes autograd as one tensor (saved_bundle.py), or both
    graphs as one node (native_node.py). `in_autocast`: the backward runs under the autocast of the
    forward, if any, and not without.
    """
    label = label or label_of(graph)
    frame = _Frame(
        graph, inputs, chosen, maker, style, label, bundles=bundles, in_autocast=in_autocast
    )
    with style.tracing():
        compiled = with_autograd(
            graph,
            inputs,
            forward=frame.compile_forward,
            backward=frame.compile_backward,
            inference=frame.compile_inference,
            cut=frame.cut,
            decompositions=style.decompositions,
            paired_draws=not chosen.eager_rng,
            in_autocast=in_autocast,
        )
    again = functools.partial(
        compile_frame,
        graph,
        chosen=chosen,
        maker=maker,
        style=style,
        label=label,
        in_autocast=in_autocast,
    )
    if frame.bundled:
        compiled = _seen_by_hooks(compiled, again, label)
    if torch.is_grad_enabled():
        again = functools.partial(again, bundles=bundles)
        compiled = _as_trained(compiled, again, frame.inputs, inputs, label, chosen.max_shapes)
    return _native_first(frame.compiled, compiled) if bundles else compiled


def _as_trained(
    compiled: Callable[..., Any],
    again: Callable[[Any], Callable[..., Any]],
    specs: Sequence[InputSpec],
    inputs: Sequence[Any],
    label: str,
    max_shapes: int,
) -> Callable[..., Any]:
    """`compiled`; a program more for each other set of kept inputs that require a gradient.

    Dynamo does not look whether what it calls static does: the gradient of what was unfrozen would
    be missing without a word, and that of what was frozen computed in vain.
    """
    given = enumerate(zip(specs, inputs, strict=True))  # the specs are of Dynamo's first call
    kept = [
        (i, s.name, v.requires_grad) for i, (s, v) in given if s.role in ("parameter", "buffer")
    ]
    if not kept:
        return compiled
    positions, names, trained = map(tuple, zip(*kept, strict=True))
    pick, requires = picker(positions), operator.attrgetter("requires_grad")
    later: dict[Any, Callable[..., Any]] = {}

    def run(*args: Any) -> Any:
        now = tuple(map(requires, pick(args)))
        if now == trained:
            return compiled(*args)
        key = now, *[arg for arg in args if isinstance(arg, int)]
        if key not in later:
            changed: dict[bool, str] = {}  # the first of each kind
            for name, was, requires_now in zip(names, trained, now, strict=True):
                if was != requires_now:
                    changed.setdefault(requires_now, name)
            if len(later) >= max_shapes:
                if True not in changed:
                    return compiled(*args)  # gradients that nobody gets
                raise RuntimeError(
                    f'{label}: "{changed[True]}" requires a gradient, which it did not when the '
                    f"graph was compiled, and there are {max_shapes} programs for other sets of "
                    "parameters that do, or of sizes; call torch._dynamo.reset() after parameters "
                    "are unfrozen, or raise the option max_shapes"
                )
            for requires_now, name in changed.items():
                verb = "requires a" if requires_now else "requires no"
                logger.info('%s: "%s" %s gradient now: a program more is made', label, name, verb)
            try:
                later[key] = again(args)
            except Exception as error:
                if True in changed:
                    what = f'"{changed[True]}" requires a gradient, which it did not when it was'
                    raise _too_late(label, what, "parameters are unfrozen", error) from error
                later[key] = compiled
        return later[key](*args)

    return run


def _too_late(label: str, what: str, when: str, error: Exception) -> RuntimeError:
    """Why a graph, compiled in a call, fails there: PyTorch knows less of it than Dynamo did."""
    return RuntimeError(
        f"{label}: {what} compiled, and it cannot be compiled in a call "
        f"({str(error).strip().splitlines()[0]}); call torch._dynamo.reset() after {when}"
    )


def _native_first(graph: CompiledGraph, wrapped: Callable[..., Any]) -> Callable[..., Any]:
    """One call of the library where that is enough, else AOTAutograd's wrapper.

    With operators of the user's the first call is the wrapper's: it checks them then.
    """
    if not graph.may_run_native:
        return wrapped
    first = True

    def run(*args: Any) -> Any:
        nonlocal first
        if first:
            if any(isinstance(arg, FakeTensor) for arg in args):
                return wrapped(*args)  # DDPOptimizer runs through what it compiles
            first = False
            if graph.has_foreign_operators:
                return wrapped(*args)
        results = graph.run_native(args)
        return wrapped(*args) if results is None else results

    return run


def _seen_by_hooks(
    bundling: Callable[..., Any], compiled: Callable[[Any], Callable[..., Any]], label: str
) -> Callable[..., Any]:
    """`bundling`; under hooks on saved tensors a second program, which shows them each one."""
    plain: Callable[..., Any] | None = None

    def run(*args: Any) -> Any:
        nonlocal plain
        if not saved_tensor_hooks_are_set():
            return bundling(*args)
        if plain is None:
            logger.info("%s: hooks on saved tensors are set: a second program is made", label)
            try:
                plain = compiled(args)
            except Exception as error:
                what = "hooks on saved tensors are set, which were not when it was"
                raise _too_late(label, what, "they are set", error) from error
        return plain(*args)

    return run


class _Frame:
    """Takes AOTAutograd's graphs of one graph of Dynamo's as they come."""

    def __init__(
        self,
        graph: fx.GraphModule,
        inputs: list[Any],
        options: CompileOptions,
        maker: Maker,
        style: Style,
        label: str,
        *,
        bundles: bool,
        in_autocast: bool,
    ) -> None:
        self._style = style
        self._bundles = bundles
        self._in_autocast = in_autocast and dispatch.in_autocast()
        self.bundled = False
        self._label = label
        self._namer = FrameNamer()
        nodes = graph.graph.find_nodes(op="placeholder")
        self.inputs = unique_names([input_spec(node, self._namer) for node in nodes])
        # Inputs that are lists are flattened after Dynamo, and counted anew.
        self._one_to_one = not any(isinstance(i, (list, tuple, dict)) for i in inputs)
        self._own_results = 0
        self._forward: fx.GraphModule | None = None
        self.compiled = maker(label, options, style)

    def cut(self, joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **rest: Any) -> Any:
        self._own_results = num_fwd_outputs
        forward, backward = self._style.partition(
            joint, inputs, num_fwd_outputs=num_fwd_outputs, **rest
        )
        self.bundled = self._bundles and bundle_saved(forward, backward, num_fwd_outputs)
        return forward, backward

    def compile_forward(self, module: fx.GraphModule, _: Any) -> Callable[..., Any]:
        self._forward = module  # its backward comes next
        return self.compiled.run_forward

    def compile_backward(self, module: fx.GraphModule, _: Any) -> Callable[..., Any]:
        assert self._forward is not None
        allow_retain_graph()
        traced = self._traced(self._forward, module)
        self.compiled.take(traced, native=self._bundles and self._one_to_one)
        return self.compiled.run_backward

    def compile_inference(self, module: fx.GraphModule, _: Any) -> Callable[..., Any]:
        self._own_results = len(module.graph.output_node().args[0])
        fold_constants(module)
        self.compiled.take(self._traced(module, None), native=False)
        return self.compiled.run_forward

    def _traced(self, forward: fx.GraphModule, backward: fx.GraphModule | None) -> TracedGraphs:
        known = [spec if spec.role != "symint" else None for spec in self.inputs if spec]
        tangents, generators = backward_inputs(backward) if backward is not None else ((), ())
        meta = current_metadata()
        return TracedGraphs(
            self._label,
            self._namer,
            forward,
            backward,
            input_specs(forward, current_tokens(), known if self._one_to_one else ()),
            tangents,
            generators,
            self._own_results,
            metadata_of(meta) if meta is not None and backward is not None else None,
            dynamo_arguments=len(self.inputs) if self._one_to_one else -1,
            in_autocast=self._in_autocast,
        )

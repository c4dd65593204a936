"""Graphs that another compiler hands over one by one, as passes: torchtitan's calling convention.

The forward and the backward of one module come apart, the backward often only in the first backward
call. From then on both run as one program; what came before runs as it was handed over.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from ..graphs.constants import fold_constants
from ..graphs.examples import add_examples, complete_examples, has_examples
from ..graphs.marked_regions import judge_open, warn_of_regions
from ..graphs.mesh_values import for_meshes, meshes_read
from ..graphs.names import FrameNamer, InputSpec, unique_names
from ..graphs.traced_graphs import TracedGraphs, backward_inputs, input_specs
from ..library.load import program_class
from ..options import CompileOptions
from ..text.entry_call import Run
from ..torch_api.aot_autograd import boxed, boxed_module
from ..torch_api.aot_metadata import current_metadata, current_tokens, own_results
from ..torch_api.dynamo import TracingContext
from .compiled_graph import CompiledGraph
from .live_graphs import follow
from .program_maker import as_aot_runs

_MOST_MESHES = 4  # sets of them that one step has programs for
logger = logging.getLogger("gravure")


class GraphPasses:
    """The passes, and every graph that they were given and that is still in use."""

    def __init__(self) -> None:
        self._options = CompileOptions()
        self._graphs: weakref.WeakSet[CompiledGraph] = weakref.WeakSet()
        # Forwards that have a backward. Nothing here keeps a graph alive: whoever compiled it lets
        # go of it before the process group ends.
        self._pairs: weakref.WeakKeyDictionary[TracingContext, weakref.ref[_Pair]] = (
            weakref.WeakKeyDictionary()
        )

    def configure(self, options: Mapping[str, Any]) -> None:
        """For graphs to come. Raises ValueError for an option that there is not."""
        self._options = CompileOptions.parse(options)

    def forward(self, module: fx.GraphModule) -> fx.GraphModule:
        """AOTAutograd's forward, or a graph that needs no gradient."""
        complete_examples(module)
        fold_constants(module)
        context = TracingContext.try_get()
        pair = _Pair(self._new_graph("forward and backward"), module, context)
        if context is not None and pair.awaits_backward:
            self._pairs[context] = weakref.ref(pair)
        return _replaced(module, pair.forward)

    def backward(self, module: fx.GraphModule) -> fx.GraphModule:
        """Its backward. Without the forward of this tracing context it runs as it is."""
        pair = self._pair()
        if pair is None or pair.has_backward:
            logger.warning("a backward came without its forward; it runs as it is")
            return module
        complete_examples(module)
        fold_constants(module)
        pair.take_backward(module)
        return _replaced(module, pair.backward)

    def entries(self) -> Callable[[], tuple[Run, Run] | None]:
        """The entries of this tracing context's forward and of its backward: None before both run
        as one program."""
        pair = self._pair()
        return pair.entries if pair is not None else lambda: None

    def _pair(self) -> _Pair | None:
        context = TracingContext.try_get()
        found = self._pairs.get(context) if context is not None else None
        return found() if found is not None else None

    def step(self, module: fx.GraphModule, static_inputs: Iterable[int]) -> fx.GraphModule:
        """A graph that holds the whole step. `static_inputs` keep their addresses.

        The result is called with the graph's arguments, one by one.
        """
        kept = set(static_inputs)
        known = has_examples(module)
        if known:
            complete_examples(module)
            fold_constants(module)
        if known and meshes_read(module) is None:
            run: Run = self._step(module, kept)
        else:
            run = _MadeInCalls(self, module, kept)
        return _replaced(module, lambda *args: run(list(args)), is_boxed=False)

    def _step(self, module: fx.GraphModule, kept: set[int]) -> Run:
        warn_of_regions(judge_open(module))
        graph = self._new_graph("step")
        handed_on = _handed_on(module)
        step = _without_results(module, handed_on) if handed_on else _copy(module)
        placeholders = step.graph.find_nodes(op="placeholder")
        specs = [_plain_spec(node, i in kept) for i, node in enumerate(placeholders)]
        graph.take(_traced(graph.label, step, unique_names(specs)), native=False)
        return _handing_on(graph.run_forward, handed_on) if handed_on else graph.run_forward

    @property
    def raises(self) -> bool:
        """Whether what gets no program is an error."""
        return self._options.raises

    def shutdown(self) -> None:
        """Gives back the graphs and arenas of all programs, which cannot run afterwards."""
        for graph in list(self._graphs):
            graph.shutdown()

    def _new_graph(self, label: str) -> CompiledGraph:
        program_class()
        graph = CompiledGraph(f"torchtitan {label}", self._options)
        self._graphs.add(graph)
        follow(graph)
        return graph


class _MadeInCalls:
    """A step of which too little is known before its first call, as programs that are made there.

    It reads meshes: one that was compiled on one rank for all was compiled with that one's. Or it
    comes from a file, without an example of what any node gives.
    """

    def __init__(self, passes: GraphPasses, module: fx.GraphModule, kept: set[int]) -> None:
        self._passes = passes
        self._module = _copy(module)
        self._kept = kept
        self._read: list[int] | None = None  # which arguments are meshes that it reads
        self._made: list[tuple[list[Any], Run]] = []  # by the meshes that each is for
        self._as_it_is: Run = boxed(as_aot_runs(_copy(module)))
        self._warned = False

    def __call__(self, args: list[Any]) -> Any:
        if self._read is None:
            self._read = self._look(args)
        given = [args[i] for i in self._read]
        for meshes, run in self._made:
            if all(a is b for a, b in zip(meshes, given, strict=True)):
                return run(args)
        if len(self._made) < _MOST_MESHES:
            run = self._for(given)
            self._made.append((given, run))
            return run(args)
        if not self._warned:
            logger.warning("a step has more than %d meshes: it runs as it is", _MOST_MESHES)
            self._warned = True
        return self._as_it_is(args)

    def _look(self, args: Sequence[Any]) -> list[int]:
        """Which arguments are meshes that it reads, once it is known what each node gives; where
        that cannot be known, none, and it runs as it is for all."""
        if has_examples(self._module):
            return meshes_read(self._module) or []
        try:
            add_examples(self._module, args)
        except Exception as error:
            self._made.append(([], self._left(error)))
            return []
        fold_constants(self._module)
        return meshes_read(self._module) or []

    def _for(self, given: list[Any]) -> Run:
        assert self._read is not None
        try:
            module, known = for_meshes(self._module, dict(zip(self._read, given, strict=True)))
            run = self._passes._step(module, self._kept)
        except Exception as error:
            return self._left(error)
        return _with_known_results(run, known) if known else run

    def _left(self, error: Exception) -> Run:
        """The step as it is. Raises `error` where that is to be one."""
        if self._passes.raises:
            raise error
        logger.warning("a step runs as it is, without a program: %s", error)
        return self._as_it_is


class _Pair:
    """One forward and its backward: as they are until both are here, then one program."""

    def __init__(
        self, graph: CompiledGraph, module: fx.GraphModule, context: TracingContext | None
    ) -> None:
        self._graph = graph
        own = own_results(module)
        metadata = current_metadata()
        tangents = metadata.traced_tangents if metadata is not None else ()
        self.awaits_backward = len(tangents) > 0 or own < _result_count(module)
        specs = input_specs(module, current_tokens())
        self._traced = _traced(graph.label, _copy(module), specs, own)
        self._forward: Run = graph.run_forward
        self._plain_forward: Run = boxed(as_aot_runs(_copy(module)))
        self._plain_backward: Run | None = None
        self._backward: Run | None = None
        self._pending = 0  # forwards that ran as they are, and whose backward is still to come
        if not self.awaits_backward:
            graph.take(self._traced, native=False)

    def forward(self, args: list[Any]) -> Any:
        if self._backward is None and self.awaits_backward:
            self._pending += 1
            return self._plain_forward(args)
        return self._forward(args)

    @property
    def has_backward(self) -> bool:
        return self._backward is not None

    def entries(self) -> tuple[Run, Run] | None:
        """What runs the forward and the backward as one program; None before both do."""
        if self._backward is None or self._pending > 0:
            return None
        return self._forward, self._backward

    def take_backward(self, module: fx.GraphModule) -> None:
        tangents, generators = backward_inputs(module)
        self._plain_backward = boxed(as_aot_runs(_copy(module)))
        self._backward = self._graph.run_backward
        traced = replace(
            self._traced, backward=_copy(module), tangents=tangents, generators=generators
        )
        self._graph.take(traced, native=False)

    def backward(self, args: list[Any]) -> Any:
        assert self._backward is not None and self._plain_backward is not None
        if self._pending > 0:
            # Which forward it belongs to is not told; as it is, it is right for all of them.
            self._pending -= 1
            return self._plain_backward(args)
        return self._backward(args)


def _replaced(module: fx.GraphModule, run: Any, *, is_boxed: bool = True) -> fx.GraphModule:
    """`module`, whose graph can still be printed, as a module that calls `run`."""
    module.forward = run
    return boxed_module(module) if is_boxed else module


def _copy(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph with a forward of its own."""
    return fx.GraphModule(module, module.graph)


def _results(module: fx.GraphModule) -> Sequence[Any]:
    return module.graph.output_node().args[0]


def _result_count(module: fx.GraphModule) -> int:
    return len(_results(module))


def _traced(
    label: str,
    forward: fx.GraphModule,
    inputs: tuple[InputSpec | None, ...],
    own_results: int | None = None,
) -> TracedGraphs:
    """Without its backward, which comes later, if there is one."""
    own = _result_count(forward) if own_results is None else own_results
    return TracedGraphs(label, FrameNamer(), forward, None, inputs, (), (), own, None)


def _handed_on(module: fx.GraphModule) -> dict[int, int]:
    """Results that are arguments and no tensors, as meshes of DTensors are: which is which."""
    arguments = {n: i for i, n in enumerate(module.graph.find_nodes(op="placeholder"))}
    known = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, int, float)
    return {
        i: arguments[node]
        for i, node in enumerate(_results(module))
        if isinstance(node, fx.Node)
        and node in arguments
        and not isinstance(node.meta.get("val", 0), known)
    }


def _without_results(module: fx.GraphModule, left_out: Container[int]) -> fx.GraphModule:
    """A copy that does not return these."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(module.graph, copies)
    results = (node for i, node in enumerate(_results(module)) if i not in left_out)
    graph.output([copies[node] if isinstance(node, fx.Node) else node for node in results])
    return fx.GraphModule(module, graph)


def _handing_on(run: Run, handed_on: dict[int, int]) -> Run:
    """`run`, and among its results these arguments."""

    def whole(args: list[Any]) -> list[Any]:
        found = {result: args[argument] for result, argument in handed_on.items()}
        others = list(run(args))
        for result in sorted(found):
            others.insert(result, found[result])
        return others

    return whole


def _with_known_results(run: Run, known: Mapping[int, Any]) -> Run:
    """`run`, whose results at the positions that are `known` are these values."""

    def whole(args: list[Any]) -> list[Any]:
        results = list(run(args))
        for i, value in known.items():
            results[i] = value
        return results

    return whole


def _plain_spec(node: fx.Node, kept: bool) -> InputSpec | None:
    value = node.meta.get("val")
    if isinstance(value, torch.Generator):
        return InputSpec("rng_state", f"{value.device}#{node.name}", None)
    if not isinstance(value, torch.Tensor):
        # A string, None, a mesh, or a number that tracing wrote into the graph: nobody reads it.
        return InputSpec("symint", node.name, None) if node.users else None
    return InputSpec("parameter" if kept else "user_input", node.name, None)

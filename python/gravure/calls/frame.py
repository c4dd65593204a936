"""Dynamo's graph: differentiated by AOTAutograd (FrameRequest), and called (FrameCall)."""

from __future__ import annotations

import logging
import operator
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from ..graphs.cached_casts import casts_as_eager
from ..graphs.codegen import ATEN, Style, in_first_style
from ..graphs.constants import fold_constants
from ..graphs.gradient_terms import counting_terms, known_terms
from ..graphs.graph_as_it_is import as_it_is
from ..graphs.names import FrameNamer, InputSpec, unique_names
from ..graphs.saved_bundle import bundle_saved
from ..graphs.traced_graphs import TracedGraphs, backward_inputs, input_specs
from ..library.direct_calls import memory_watch
from ..library.load import program_class
from ..library.progress import under_way
from ..options import CompileOptions
from ..text.dynamo_graph import input_spec
from ..text.entry_call import picker
from ..torch_api.aot_autograd import with_autograd
from ..torch_api.aot_metadata import (
    allow_retain_graph,
    current_metadata,
    current_tokens,
    metadata_of,
    written_arguments,
    written_results,
)
from ..torch_api.autograd import may_require_gradient, saved_tensor_hooks_are_set
from ..torch_api.compile_lock import one_at_a_time
from ..torch_api.dispatch import in_autocast
from ..torch_api.dynamo import with_one_input
from ..torch_api.dynamo_errors import first_line
from ..torch_api.fake_tensors import FakeTensor, storage_key
from .compiled_graph import CompiledGraph
from .first_run import FirstRun, is_of_operator, why_it_failed
from .gradient_layout import GradientLayout
from .live_graphs import follow, unfollow
from .size_choice import FEWEST
from .step_clock import StepClock
from .written_again import refuse_repeated

logger = logging.getLogger("gravure")


@dataclass(frozen=True)
class FrameRequest:
    """A graph of Dynamo's, and how it is to be compiled: as often as calls ask for it."""

    graph: fx.GraphModule
    label: str
    options: CompileOptions
    graph_break: str = ""  # where Dynamo ended it before its function did, and why
    style: Style = ATEN
    in_autocast: bool = False  # its backward runs under the autocast of the forward, if any
    clock: StepClock | None = None  # of its calls, with the option times

    def compile_in_first_style(
        self, inputs: Sequence[Any], *, symbolic: bool, bundles: bool
    ) -> FrameCall:
        """`compile` in the first of the styles of its options that can be."""

        def make(style: Style) -> FrameCall:
            return replace(self, style=style).compile(inputs, bundles=bundles)

        return in_first_style(self.options, self.label, make, symbolic=symbolic)

    @one_at_a_time
    def compile(self, inputs: Sequence[Any], *, bundles: bool = False) -> FrameCall:
        """The graph, differentiated by AOTAutograd, and what runs it.

        `bundles`: what only the backward reads passes autograd as one tensor (saved_bundle.py), or
        both graphs as one node (native_node.py).
        """
        frame = _Frame(self, inputs, bundles=bundles)
        frame.compiled.made_for = program_class().kernel_settings()
        casts = casts_as_eager(self.graph, inputs)
        with (
            under_way(f"compiling {self.label}"),
            casts,
            counting_terms(self.graph) as frame.terms,
            self.style.tracing(),
        ):
            wrapper = with_autograd(
                self.graph,
                inputs,
                forward=frame.compile_forward,
                backward=frame.compile_backward,
                inference=frame.compile_inference,
                cut=frame.cut,
                decompositions=self.style.decompositions,
                paired_draws=not self.options.eager_rng,
                in_autocast=self.in_autocast,
            )
        requiring = _RequiringInputs(frame.inputs, inputs) if torch.is_grad_enabled() else None
        shared = None
        if frame.writes != []:
            shared = _SharedMemory(frame.inputs, inputs, frame.writes)
        return FrameCall(
            self,
            frame.compiled,
            wrapper,
            requiring,
            shared,
            frame.writes,
            bundles=bundles,
            bundled=frame.bundled,
        )

    def left_to_eager(self, why: str) -> Callable[..., Any]:
        """The graph as it is, in eager, with a warning."""
        graph = self.new_graph()
        graph.failure = why
        logger.warning("%s runs as it is, without a program: %s", self.label, why)
        return _EagerCall(graph, as_it_is(self.graph))

    def new_graph(self) -> CompiledGraph:
        """What will run it. Reports have it from now on."""
        graph = CompiledGraph(self.label, self.options, self.style)
        graph.graph_break, graph.clock = self.graph_break, self.clock
        follow(graph)
        return graph


@dataclass(frozen=True)
class _EagerCall:
    """Eager's, of a graph that reports have as long as this lives."""

    reported: CompiledGraph
    run: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        return self.run(*args)


class _RequiringInputs:
    """Which of a graph's inputs required a gradient at first.

    Dynamo does not look for that in tensors of a dictionary, such as a module's parameters.
    """

    def __init__(self, specs: Sequence[InputSpec | None], inputs: Sequence[Any]) -> None:
        kept = [
            (i, spec.name if spec is not None else f"input {i}", value.requires_grad)
            for i, (spec, value) in enumerate(zip(specs, inputs, strict=True))
            if isinstance(value, torch.Tensor) and may_require_gradient(value)
        ]
        self._names = [name for _, name, _ in kept]
        self._pick = picker([i for i, _, _ in kept])
        self.first = tuple(requires for _, _, requires in kept)

    def now(self, args: Sequence[Any]) -> tuple[bool, ...]:
        """Which ones do in this call."""
        return tuple(map(_requires_grad, self._pick(args)))

    def changed(self, now: tuple[bool, ...]) -> dict[bool, str]:
        """By whether they require one `now`, the name of the first input that did not at first, and
        of the first that did."""
        found: dict[bool, str] = {}
        for name, was, requires in zip(self._names, self.first, now, strict=True):
            if was != requires:
                found.setdefault(requires, name)
        return found


_requires_grad = operator.attrgetter("requires_grad")


class _SharedMemory:
    """Which of a graph's tensors share memory, where it writes into one of them.

    Dynamo passes what is one tensor once, and does not look whether two come to share memory, by
    `.data =`, `set_`, or as arguments that are views: each would be computed from the values of
    before the call. What AOTAutograd sees at first it traces so, views of one storage as they lie.
    """

    def __init__(
        self,
        specs: Sequence[InputSpec | None],
        inputs: Sequence[Any],
        writes: Sequence[int] | None,
    ) -> None:
        """`writes`: the inputs that are written; None: any may be."""
        tensors = [i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
        self._pick = picker(tensors)
        written = set(tensors if writes is None else writes)
        self._written = [k for k, i in enumerate(tensors) if i in written]
        known = [specs[i] for i in tensors]
        self._names = [
            spec.name if spec is not None else f"input {i}"
            for i, spec in zip(tensors, known, strict=True)
        ]
        self._kept = [spec is not None and spec.role in ("parameter", "buffer") for spec in known]
        self._are_apart = memory_watch(len(tensors), self._written)
        self.first: Sharing | None = None  # before the first call

    def begin(self, args: Sequence[Any]) -> None:
        """The first call, in which it was traced."""
        now = self.now(args)
        # What has two storages at one address was traced as if it were apart.
        self.first = () if now and now[0] == _AT_ONE_ADDRESS else now

    def now(self, args: Sequence[Any]) -> Sharing:
        """How they lie in each other's memory; nothing where none share what is written."""
        tensors = self._pick(args)
        return () if self._are_apart(tensors) else self._look(tensors)

    def _look(self, tensors: Sequence[Tensor]) -> Sharing:
        found = program_class().shared_tensors(list(tensors), self._written)
        if not found:
            return ()
        memory = list(map(storage_key, tensors))
        one, other = (memory[k] for k in found)
        count = Counter(memory)
        first = {each: k for k, each in reversed([*enumerate(memory)])}
        layouts = [
            (k, first[memory[k]], each.storage_offset(), *each.shape, *each.stride())
            for k, each in enumerate(tensors)
            if count[memory[k]] > 1 or k in found
        ]
        return (_AT_ONE_ADDRESS if one != other else "", tuple(found), *layouts)

    def changed(self, args: Sequence[Any]) -> bool:
        return self.now(args) != self.first

    def may_be_traced(self, now: Sharing) -> bool:
        """Whether AOTAutograd can see it, and it is likely to stay."""
        if not now:
            return True
        return now[0] != _AT_ONE_ADDRESS and all(self._kept[k] for k, *_ in now[2:])

    def difference(self, now: Sharing) -> str:
        """How that is not as at first, in words; "" if it is."""
        if now == self.first:
            return ""
        if not now:
            return "tensors share no memory any more that the graph writes"
        one, other = (self._names[k] for k in now[1])
        return f'"{one}" and "{other}" share memory, and one of them is written'


# `_AT_ONE_ADDRESS` or nothing, two that share memory, and how each lies that shares its storage.
Sharing = tuple[Any, ...]
_AT_ONE_ADDRESS = "two storages"


class FrameCall:
    """A graph of Dynamo's as Dynamo calls it."""

    def __init__(
        self,
        request: FrameRequest,
        graph: CompiledGraph,
        wrapper: Callable[..., Any],
        requiring: _RequiringInputs | None,
        shared: _SharedMemory | None,
        writes: Sequence[int] | None,
        *,
        bundles: bool,
        bundled: bool,
    ) -> None:
        """`writes`: the inputs that the graph writes into; None where that is not known."""
        self._request = request
        self._graph = graph
        self._wrapper = wrapper  # AOTAutograd's
        self._bundles = bundles  # a bundle, or a node of ours, may be made
        self._bundled = bundled  # a bundle was made
        self._is_native = bundles and graph.may_run_native
        self._writes = writes
        self._was_called = False  # without an error
        self._eager: Callable[..., Any] | None = None  # the graph, once its calls are eager's
        self._was_wrapped = False  # a call went through the wrapper
        self._layout = GradientLayout(request.label, graph.metadata)
        self._requiring = requiring if requiring is not None and requiring.first else None
        self._shared = shared
        if shared is not None:
            graph.refuses = shared.changed
        graph.leaves = _leaving(weakref.WeakMethod(self._leave))
        # Other graphs of the same request, by settings of kernels, which inputs require a gradient
        # or share memory, and sizes; None where this one does.
        self._others: dict[Any, Callable[..., Any] | None] = {}
        self._as_it_is: Callable[..., Any] | None = None  # where tensors share memory
        self._told: set[str] = set()
        self._unbundled: FrameCall | None = None

    def __call__(self, *args: Any) -> Any:
        """By the first way that is enough for this call: autograd's node in the library, this
        graph under AOTAutograd's wrapper, or another graph that is for what is the case now."""
        if not self._was_called:
            return self._first(args)
        if self._is_native:
            results = self._graph.run_native(args)
            if results is not None:
                return results
        if self._eager is not None:
            return self._eager(*args)
        return self._call_for_now(args)

    def _call_for_now(self, args: Sequence[Any]) -> Any:
        call = self._for_now(args)
        return self._wrapped(args) if call is None else call(*args)

    def _first(self, args: Sequence[Any]) -> Any:
        """Until it has run once: eager answers where it fails by an operator."""
        if any(isinstance(arg, FakeTensor) for arg in args):
            return self._call_for_now(args)  # DDPOptimizer runs through what it compiles
        self._begin(args)
        before = self._before(args)
        # The wrapper, which checks operators of the user's, does so in the first call.
        native = self._is_native and not self._graph.has_foreign_operators
        call: Callable[..., Any] | None = None
        try:
            results = self._graph.run_native(args) if native else None
            if results is None and (call := self._for_now(args)) is None:
                results = self._wrapped(args)
        except Exception as error:
            if before is None or not is_of_operator(error, has_program=not self._graph.failure):
                raise
            if not before.put_back():
                raise
            why = why_it_failed("forward", error)
        else:
            self._was_called = True
            return results if call is None else call(*args)
        results = as_it_is(self._request.graph)(*args)  # where it fails, too, that is the error
        self._leave(why)
        return results

    def _begin(self, args: Sequence[Any]) -> None:
        if self._shared is not None and self._shared.first is None:
            self._shared.begin(args)
            # What its own program sees is one tensor by then.
            self._is_native = self._is_native and not self._shared.first

    def _before(self, args: Sequence[Any]) -> FirstRun | None:
        """None where eager must not answer."""
        if self._request.options.raises or not self._graph.may_run_again:
            return None
        return FirstRun.of(args, self._writes) if self._writes is not None else None

    def _leave(self, why: str) -> None:
        """From now on its calls are eager's."""
        if self._eager is not None:
            return
        self._eager, self._is_native, self._was_called = as_it_is(self._request.graph), False, True
        label = self._request.label
        logger.warning("%s: %s; from now on it runs as it is, uncaptured", label, why)
        self._others.clear()
        self._unbundled = None
        self._graph.drop()
        self.stay_passed_by(why)

    def passed_by(self, why: str) -> None:
        """Calls run as they are, without this: reports say `why`. "": calls come here again."""
        if self._eager is None:
            self._graph.passed_by = why

    def stay_passed_by(self, why: str) -> None:
        """Calls will never come here again."""
        self._graph.end_unrun()
        self._graph.passed_by = why

    def replaced(self) -> None:
        """Another one is called in its place from now on."""
        if self._graph.end_unrun():
            unfollow(self._graph)

    def _for_now(self, args: Sequence[Any]) -> Callable[..., Any] | None:
        """What is called instead, where the graph would be traced otherwise now; None for this.

        Dynamo looks for none of these: the settings by which operators choose their kernels,
        attention's for one; whether what it calls static requires a gradient (that of what was
        unfrozen would be missing without a word, and that of what was frozen computed in vain);
        whether two tensors have come to share memory.
        """
        settings = program_class().kernel_settings()
        requiring = self._requiring.now(args) if self._requiring is not None else ()
        shared: Sharing = ()
        tied = ""
        if self._shared is not None:
            shared = self._shared.now(args)
            tied = self._shared.difference(shared)
            if tied and not self._shared.may_be_traced(shared):
                return self._uncaptured(tied)
        if settings == self._graph.made_for and not tied:
            if self._requiring is None or requiring == self._requiring.first:
                return None
        key = settings, requiring, shared, *[arg for arg in args if isinstance(arg, int)]
        if key in self._others:
            return self._others[key]
        return self._compiled_for(key, args, tied)

    def _compiled_for(
        self, key: tuple[Any, ...], args: Sequence[Any], tied: str
    ) -> Callable[..., Any] | None:
        """`tied`: how memory is shared otherwise than at first, or ""."""
        settings, requiring, *_ = key
        label, most = self._request.label, self._request.options.max_shapes or FEWEST
        changed = self._requiring.changed(requiring) if self._requiring is not None else {}
        differs = program_class().settings_difference(settings, self._graph.made_for)
        if len(self._others) >= most:
            if True not in changed and not differs and not tied:
                return None  # gradients that nobody gets
            if tied and True not in changed and not differs:
                return self._uncaptured(tied)
            what = f"{differs} is set otherwise than"
            if True in changed:
                what = f'"{changed[True]}" requires a gradient, which it did not'
            raise RuntimeError(
                f"{label}: {what} when the graph was compiled, and there are {most} programs for "
                "other settings, sets of parameters that require a gradient, or sizes; call "
                "torch._dynamo.reset() after such a change, or raise the option max_shapes"
            )
        for requires, name in changed.items():
            verb = "requires a" if requires else "requires no"
            logger.info('%s: "%s" %s gradient now: a program more is made', label, name, verb)
        if differs:
            logger.info("%s: %s changed: a program more is made", label, differs)
        if tied:
            logger.info("%s: other buffers share memory now: a program more is made", label)
        found: Callable[..., Any] | None = None
        try:
            found = self._compiled(args)
        except Exception as error:
            if differs:
                what = f"{differs} changed since it was"
                raise _too_late(label, what, "such a change", error) from error
            if True in changed:
                what = f'"{changed[True]}" requires a gradient, which it did not when it was'
                raise _too_late(label, what, "parameters are unfrozen", error) from error
            if tied:
                found = self._uncaptured(tied)
        self._others[key] = found
        return found

    def _uncaptured(self, why: str) -> Callable[..., Any]:
        """Eager's, of the graph as it is."""
        if self._as_it_is is None:
            self._as_it_is = as_it_is(self._request.graph)
        if why not in self._told:
            self._told.add(why)
            logger.warning(
                "%s: %s, otherwise than when it was compiled: such calls run as they are, in "
                "eager's kernels, uncaptured; give each tensor memory of its own (`clone()`), or "
                "call torch._dynamo.reset() behind such a change",
                self._request.label,
                why,
            )
        return self._as_it_is

    def _compiled(self, args: Sequence[Any]) -> Callable[..., Any]:
        """The graph for these arguments. What is one tensor by now is one input of it."""
        ids = [id(arg) if isinstance(arg, torch.Tensor) else -i for i, arg in enumerate(args)]
        different = [i for i, each in enumerate(ids) if ids.index(each) == i]
        if len(different) == len(ids):
            return self._request.compile(args, bundles=self._bundles)
        request = replace(
            self._request, graph=with_one_input(self._request.graph, [ids.index(i) for i in ids])
        )
        pick = picker(different)
        call = request.compile(pick(args), bundles=self._bundles)
        return lambda *args: call(*pick(args))

    def _wrapped(self, args: Sequence[Any]) -> Any:
        """AOTAutograd's wrapper; under hooks on saved tensors one that shows them each one."""
        if not self._bundled or not saved_tensor_hooks_are_set():
            results = self._wrapper(*args)
            self._graph.watch_results(results)
            # The library, if it runs the next calls, copies as this one does where sizes are open,
            # and says so.
            if self._was_wrapped or not self._is_native or not self._graph.has_open_sizes:
                self._layout.watch(results)
            self._was_wrapped = True
            return results
        if self._unbundled is None:
            label = self._request.label
            logger.info("%s: hooks on saved tensors are set: a second program is made", label)
            try:
                self._unbundled = self._request.compile(args)
            except Exception as error:
                what = "hooks on saved tensors are set, which were not when it was"
                raise _too_late(label, what, "they are set", error) from error
        return self._unbundled(*args)


def _leaving(leave: weakref.WeakMethod[Callable[[str], None]]) -> Callable[[str], None]:
    """FrameCall._leave, which does not keep the call alive."""

    def leaves(why: str) -> None:
        alive = leave()
        if alive is not None:
            alive(why)

    return leaves


def _too_late(label: str, what: str, when: str, error: Exception) -> RuntimeError:
    """The error where a graph cannot be compiled in a call, in which PyTorch knows less of it than
    under Dynamo. `what`: what has changed. `when`: behind what torch._dynamo.reset() helps."""
    return RuntimeError(
        f"{label}: {what} compiled, and it cannot be compiled in a call "
        f"({first_line(error)}); call torch._dynamo.reset() after {when}"
    )


class _Frame:
    """Takes AOTAutograd's graphs of one graph of Dynamo's as they come."""

    def __init__(self, request: FrameRequest, inputs: Sequence[Any], *, bundles: bool) -> None:
        self._style = request.style
        self._bundles = bundles
        self._in_autocast = request.in_autocast and in_autocast()
        self.bundled = False
        self.writes: list[int] | None = None  # inputs that it writes into; None: not known
        self._label = request.label
        self._namer = FrameNamer()
        self._dynamo = request.graph
        nodes = request.graph.graph.find_nodes(op="placeholder")
        self.inputs = unique_names([input_spec(node, self._namer) for node in nodes])
        # Inputs that are lists are flattened after Dynamo, and counted anew.
        self._one_to_one = not any(isinstance(i, (list, tuple, dict)) for i in inputs)
        self.terms: dict[int, int] = {}  # of the gradient of each input, while it is traced
        self._own_results = 0
        self._forward: fx.GraphModule | None = None
        self.compiled = request.new_graph()

    def cut(self, joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **rest: Any) -> Any:
        self._own_results = num_fwd_outputs
        self._refuse_repeated(joint)
        forward, backward = self._style.partition(
            joint, inputs, num_fwd_outputs=num_fwd_outputs, **rest
        )
        self.bundled = self._bundles and bundle_saved(forward, backward, num_fwd_outputs)
        return forward, backward

    def _refuse_repeated(self, joint: fx.GraphModule) -> None:
        meta = current_metadata()
        first = written_results(meta) if meta is not None else 0
        refuse_repeated(self._label, self._dynamo, joint, joint.graph.output_node().args[0][:first])

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
        if meta is not None and self._one_to_one and len(meta.input_info) == len(self.inputs):
            self.writes = written_arguments(meta)
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
            terms=self._terms(backward) if meta is not None else {},
        )

    def _terms(self, backward: fx.GraphModule | None) -> dict[int, int]:
        """Of how many terms gradients are sums, where autograd sees inputs as Dynamo does."""
        if backward is None or not self._one_to_one or current_tokens():
            return {}
        return known_terms(backward, self.terms)

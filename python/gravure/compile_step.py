"""`gravure.compile_step(fn)`: forward, loss and backward of a step as one program, at call time."""

from __future__ import annotations

import functools
import logging
import operator
import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
import torch._dynamo
import torch._dynamo.utils as dynamo_utils
from torch import fx
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .aot_entries import device_of, picker
from .backend import input_spec, label_of
from .codegen import Stretches, Style, compile_graphs, styles
from .compiled_graph import CompiledGraph
from .eager_kernels import LIBRARY
from .errors import ExportError
from .export import step_entry
from .fx_import import EntryWriter
from .known_numbers import KnownNumbers
from .names import InputSpec, Namer
from .optimizer_step import Update, refuse_hooks, settings_of
from .options import CompileOptions
from .program_maker import Instance
from .program_text import HEADER
from .report import follow
from .runtime import program_class
from .trace import (
    Capture,
    OutputSpec,
    Traced,
    check_loss,
    differentiate,
    output_node,
    refusal,
    silent_functions,
    unique_names,
)

logger = logging.getLogger("gravure")

# Marks the loss in Dynamo's graph, whose outputs come in an order of Dynamo's own.
LIBRARY.define("loss(Tensor loss) -> Tensor")
LIBRARY.impl("loss", lambda loss: loss.clone(), "CompositeImplicitAutograd")
_LOSS = torch.ops.gravure.loss

_NAMED_ARGUMENTS = 64  # further positional ones have numbers for names
_NOT_FOR_STEPS = ("on_missed", "max_shapes", "max_modules")


def compile_step(
    fn: Callable[..., Any],
    *,
    optimizer: Optimizer | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """`fn` as a step: a call runs forward, loss and backward as one program, without autograd.

    `fn` returns the loss, or a tuple or list that begins with it. The compiled step returns the
    same, detached, and leaves the gradients in `.grad` of every leaf that the loss reaches, added
    to what is there, as `loss.backward()` does: do not call backward yourself. Parameters stay the
    caller's tensors; a replaced one is used from the next call on. A call with arguments of another
    shape compiles another program.

    With `optimizer` a call ends with its step, in the same program: the gradients of its parameters
    are used up inside, and their `.grad` stays None. Parameters and state stay the caller's
    tensors. The first call runs `optimizer.step()` itself, which makes the state. A setting that is
    a number is part of the program: a learning rate that changes belongs in a tensor.

    Raises ValueError for an option that there is not; ExportError, at the first call, for a
    function that cannot become a program, and RuntimeError, before anything has run, for a
    parameter with a hook on its gradient.
    """
    if not callable(fn):
        raise TypeError(f"compile_step takes a function or a module, not a {type(fn).__name__}")
    for name in _NOT_FOR_STEPS:
        if name in (options or {}):
            raise ValueError(
                f"compile_step takes no option {name!r}: it makes a program for each shape, and "
                "raises ExportError where it cannot"
            )
    chosen = CompileOptions.parse(options)
    name = getattr(fn, "__name__", type(fn).__name__)
    if optimizer is not None:
        return _with_optimizer(fn, optimizer, options, name)
    return _step(fn, name, _Compiler(fn, name, chosen))


def _with_optimizer(
    fn: Callable[..., Any],
    optimizer: Optimizer,
    options: Mapping[str, Any] | None,
    name: str,
) -> Callable[..., Any]:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer: expected a torch.optim one, not a {type(optimizer).__name__}")
    refuse_hooks(optimizer, name)
    first: Callable[..., Any] | None = compile_step(fn, options=options)
    compiler = _Compiler(fn, name, CompileOptions.parse(options), optimizer)
    further = _step(fn, name, compiler)

    def step(*args: Any, **kwargs: Any) -> Any:
        nonlocal first
        if first is None:
            compiler.settings = compiler.known.setdefault(
                settings_of(optimizer), len(compiler.known)
            )
            return further(*args, **kwargs)
        for group in optimizer.param_groups:
            if any(p.grad is not None for p in group["params"]):
                raise RuntimeError(
                    "a parameter has a gradient already, which a step with its optimizer would "
                    "not add to; call zero_grad(set_to_none=True) before"
                )
        result = first(*args, **kwargs)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        first = None
        return result

    return functools.update_wrapper(step, fn) if isinstance(fn, types.FunctionType) else step


def _step(fn: Callable[..., Any], name: str, compiler: _Compiler) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if compiler.settings < 0:  # Dynamo compiles anew for other settings
            return None
        result = fn(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            return _LOSS(result)
        if isinstance(result, tuple) and isinstance(result[0], torch.Tensor):
            return (_LOSS(result[0]), *result[1:])
        if isinstance(result, list) and isinstance(result[0], torch.Tensor):
            return [_LOSS(result[0]), *result[1:]]
        return result

    # A code object of its own: Dynamo keeps what it compiled by code object.
    code = call.__code__.replace()
    fresh = types.FunctionType(code, call.__globals__, "call", None, call.__closure__)
    compiled = torch.compile(fresh, backend=compiler, fullgraph=True, dynamic=False)

    def step(*args: Any, **kwargs: Any) -> Any:
        try:
            result = compiled(*args, **kwargs)
        except FailOnRecompileLimitHit as error:
            raise ExportError(
                name,
                f"it was called with more than {torch._dynamo.config.recompile_limit} kinds of "
                "arguments" + (" or settings of its optimizer" if compiler.optimizer else ""),
                ("make a learning rate that changes a tensor, " if compiler.optimizer else "")
                + "pad to fewer shapes, or raise torch._dynamo.config.recompile_limit",
            ) from error
        except TorchDynamoException:
            result = _again(compiled, args, kwargs, name)
        if not compiler.programs:
            raise ExportError(name, "it computes nothing with tensors", "return a loss")
        return result

    return functools.update_wrapper(step, fn) if isinstance(fn, types.FunctionType) else step


def _again(compiled: Callable[..., Any], args: Any, kwargs: Any, name: str) -> Any:
    """Compiles with the settings that export traces with: only where it must, they cost time."""
    settings = {"allow_rnn": True, "ignore_logging_functions": silent_functions()}
    unlogged = mock.patch.object(dynamo_utils, "_get_dynamo_config_for_logging", str)
    try:
        with torch._dynamo.config.patch(settings), unlogged:
            return compiled(*args, **kwargs)
    except TorchDynamoException as error:
        raise refusal(error, name) from error


class _Compiler:
    """Dynamo's backend: from its graph of a step to what runs it."""

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str,
        options: CompileOptions,
        optimizer: Optimizer | None = None,
    ) -> None:
        self.optimizer = optimizer
        self.known: dict[Any, int] = {}  # settings of the optimizer, by number
        self.settings = 0  # those of this call
        self.namer = Namer(fn, (None,) * _NAMED_ARGUMENTS)
        self.name = name
        self.options = options
        self.programs = 0

    def __call__(self, graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        library = program_class()
        for value in inputs:
            if is_traceable_wrapper_subclass(value):
                kind = type(value).__name__
                raise ExportError(self.name, f"it reads a {kind}", "use plain tensors")
        namer = self.namer
        label = f"{self.name}, {label_of(graph)}"
        specs = [input_spec(n, namer) for n in graph.graph.find_nodes(op="placeholder")]
        order = _loss_first(graph, self.name)
        capture = Capture(graph=graph, inputs=list(inputs), context=TracingContext.get())
        traced, stretches = self._traced(graph, capture, unique_names(specs), label)
        update = Update(self.optimizer, inputs) if self.optimizer is not None else None
        text, writer, places = step_entry(traced, carries_python=True, update=update)
        with unset_fake_temporarily():
            device = device_of([traced.forward, traced.backward], label)
            program = library.of_text(f"{HEADER}\n{text}", device, self.options.for_library())
            _bind(program, writer)
        examples = [value.meta.get("example_value") for value in output_node(graph).args[0]]
        self.programs += 1
        tensors = all(isinstance(value, torch.Tensor) for value in [*inputs, *examples])
        kept = [i for i, spec in enumerate(specs) if spec.role in ("parameter", "buffer")]
        run = _caller(program, [places[i] for i in order], kept, only_tensors=tensors)
        if update is not None:
            run = _updating(run, program, update)
        missed = stretches.missed if stretches else []
        instance = Instance(run, None, program, missed=missed)
        engraved = CompiledGraph.around(label, self.options, instance)
        # Both live as long as it can run.
        run.compiled_graph = engraved  # type: ignore[attr-defined]
        run.called = stretches, writer.held  # type: ignore[attr-defined]
        follow(engraved)
        return run

    def _traced(
        self, graph: fx.GraphModule, capture: Capture, specs: list[InputSpec], label: str
    ) -> tuple[Traced, Stretches | None]:
        """Forward and backward, and what was compiled of them."""
        *others, last = styles(self.options, symbolic=False)
        for style in others:
            try:
                return self._of_style(graph, capture, specs, label, style)
            except Exception as error:
                logger.debug("%s: not whole by Inductor: %r", label, error)
        return self._of_style(graph, capture, specs, label, last)

    def _of_style(
        self,
        graph: fx.GraphModule,
        capture: Capture,
        specs: list[InputSpec],
        label: str,
        style: Style,
    ) -> tuple[Traced, Stretches | None]:
        halves = differentiate(capture, self.name, not self.options.eager_rng, style)
        count = len(output_node(graph).args[0])
        names = ["loss", *[f"output{i}" for i in range(1, count)]]
        outputs = [OutputSpec(name, index=i) for i, name in enumerate(names)]
        specs = [replace(spec) for spec in specs]
        traced = Traced(self.name, *halves[:2], specs, outputs, halves[2], self.namer)
        if not style.inductor:
            return traced, None
        text, writer, _ = step_entry(traced, carries_python=True)
        made = compile_graphs(
            [(traced.forward, "step"), (traced.backward, "step")],
            {"step": writer.owners},
            f"{HEADER}\n{text}",
            KnownNumbers(),
            style,
            self.options,
            label,
        )
        forward, backward = made.modules
        return replace(traced, forward=forward, backward=backward), made


def _updating(run: Callable[..., Any], program: Any, update: Update) -> Callable[..., Any]:
    """`run` with the optimizer's state bound, and bound anew where it is another."""
    held: list[torch.Tensor] = []

    def call(*args: Any) -> Any:
        nonlocal held
        update.check()
        tensors = update.tensors()
        if len(held) != len(tensors) or not all(map(operator.is_, tensors, held)):
            program.bind("step", update.positions, tensors)
            held = tensors
        return run(*args)

    return call


def _loss_first(graph: fx.GraphModule, name: str) -> list[int]:
    """Makes the loss the graph's first output, and each output one of its own, without a gradient.

    Returns where each of the graph's former outputs is among them.
    """
    marks = graph.graph.find_nodes(op="call_function", target=_LOSS)
    if len(marks) != 1:
        raise ExportError(
            name,
            "its first result is not a tensor that it computes",
            "return the loss, or a tuple that begins with it",
        )
    loss = marks[0].args[0]
    check_loss(loss.meta.get("example_value"), name, step=True)
    marks[0].replace_all_uses_with(loss)
    graph.graph.erase_node(marks[0])
    end = output_node(graph)
    former = list(end.args[0])
    values = list(dict.fromkeys([loss, *former]))
    order = [values.index(value) for value in former]
    with graph.graph.inserting_before(end):
        for i, value in enumerate(values):
            example = value.meta.get("example_value") if isinstance(value, fx.Node) else None
            if i and getattr(example, "requires_grad", False):
                values[i] = graph.graph.call_method("detach", (value,))
    end.args = (tuple(values),)
    graph.recompile()
    return order


def _bind(program: Any, writer: EntryWriter) -> None:
    """Constants and random states, which are the same in each call."""
    values: dict[int, Any] = {}
    for i, (spec, _, _) in enumerate(writer.inputs):
        if spec.role == "constant":
            values[i] = spec.value
        elif spec.role == "rng_state":
            values[i] = torch.Generator(spec.name.partition("#")[0])
            values[i].set_state(spec.value)
    added = range(len(writer.inputs), len(program.inputs("step")))
    values |= dict.fromkeys(added)
    program.bind("step", list(values), list(values.values()))


def _caller(
    program: Any, places: list[int], kept: list[int], *, only_tensors: bool
) -> Callable[..., Any]:
    """What Dynamo's code calls: the graph's inputs in, its former outputs out.

    Inputs at `kept`, parameters and buffers, are bound, and bound anew when they are others.
    """
    run = program.run_step_tensors if only_tensors else program.run_step
    names = [name for _, name in program.inputs("step")]
    pick = picker(kept)
    held: tuple[Any, ...] | None = None
    rest: Callable[[Any], tuple[Any, ...]] = picker([])
    removed = False  # some hook was: the library still sees where it was

    def hold(args: tuple[Any, ...]) -> None:
        nonlocal held, rest
        held = pick(args)
        rest = picker([i for i in range(len(args)) if i not in set(kept)])
        program.bind("step", kept, list(held))

    def call(*args: Any) -> list[Any]:
        nonlocal removed
        if held is None or not all(map(operator.is_, pick(args), held)):
            hold(args)
        if removed:
            _check_hooks(args, names)
        try:
            results = run("step", rest(args), not removed)
        except RuntimeError as error:
            if "has a hook" not in str(error):
                raise
            _check_hooks(args, names)
            removed = True
            results = run("step", rest(args), False)
        return [results[i] if i >= 0 else None for i in places]

    return call


def _check_hooks(args: tuple[Any, ...], names: list[str]) -> None:
    for tensor, name in zip(args, names, strict=False):
        if tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
            raise RuntimeError(
                f'"{name}" has a hook on its gradient, and a step runs without autograd; remove '
                'the hook, or use torch.compile(backend="gravure"), which runs it'
            )

"""From Dynamo's graph of a step to what runs it: forward, loss, backward, and the update."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import fx

from ..calls.compiled_graph import CompiledGraph
from ..calls.graph_break import as_told
from ..calls.live_graphs import follow
from ..calls.replaced_memory import CURE, replaces_memory
from ..calls.reports import trace_program
from ..calls.written_again import warn_of_repeated
from ..errors import ExportError
from ..graphs.codegen import CompiledRegions, Style, compile_graphs, in_first_style
from ..graphs.devices import device_of
from ..graphs.donated import donatable
from ..graphs.known_numbers import KnownNumbers
from ..graphs.names import InputSpec, Namer
from ..graphs.node_facts import is_random, repeats_draws
from ..graphs.trace import DynamoGraph, check_loss, differentiate, output_node
from ..graphs.traced_graphs import OutputSpec, TracedGraphs
from ..graphs.undivided import gains_undivided, undivided
from ..library.load import program_class
from ..library.namespace import LIBRARY
from ..library.progress import under_way
from ..options import CompileOptions
from ..text.dynamo_graph import input_spec, label_of
from ..text.entries import step_entry
from ..text.fx_import import EntryWriter
from ..text.program_text import HEADER
from ..torch_api.autograd import may_require_gradient
from ..torch_api.dispatch import is_traceable_wrapper_subclass
from ..torch_api.dynamo import TracingContext
from ..torch_api.eager_tracing import must_trace_as_eager, traces_as_eager
from ..torch_api.fake_tensors import unset_fake_temporarily
from ..torch_api.guard_checks import Scope
from .optimizer_step import Ending, Update
from .step_call import ENTRY, Kept, StepProgram, bind_constants, leave_out

# Marks the loss in Dynamo's graph, whose outputs come in an order of Dynamo's own.
LIBRARY.define("loss(Tensor loss) -> Tensor")
LIBRARY.impl("loss", lambda loss: loss.clone(), "CompositeImplicitAutograd")
mark_loss = torch.ops.gravure.loss

logger = logging.getLogger("gravure")

_LSTM = torch.ops.aten.mkldnn_rnn_layer.default
# What an update computes of step counts is written into its captured kernels.
FOR_UPDATES = {"write_numbers": "1"}
_NAMED_ARGUMENTS = 64  # further positional ones have numbers for names


@dataclass
class WrittenStep:
    """A step as a program text, and how it is called."""

    label: str
    text: str
    writer: EntryWriter
    device: str
    positions: list[int]  # of Dynamo's outputs, among the entry's that are no gradients
    kept: list[int]  # positions of parameters and buffers
    only_tensors: bool  # taken and returned
    regions: CompiledRegions | None  # what Inductor compiled of it
    update: Update | None


class _Made(NamedTuple):
    """What runs one of Dynamo's graphs. All of it belongs to the step, and goes with it."""

    program: StepProgram
    graph: CompiledGraph
    called: list[Any]  # what the program calls by name


class StepCompiler:
    """From Dynamo's graph of a step to what runs it.

    It keeps its programs: Dynamo's tables, which may outlive a step, have weak references alone.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str,
        options: CompileOptions,
        ending: Ending | None = None,
    ) -> None:
        self.ending = ending
        self.choice = 0  # of its ending, in this call: one of Ending.choices()
        self.state = 0  # of its inputs, as OtherState has it: a number, as the choice
        self._states: dict[tuple[Any, ...], int] = {}
        self.scope: Scope | None = None  # of the frame that Dynamo compiles
        self.namer = Namer(fn, (None,) * _NAMED_ARGUMENTS)
        self.name = name
        self.options = options
        self.programs = 0
        # By what Dynamo calls, for as long as it may.
        self._made: weakref.WeakKeyDictionary[Callable[..., Any], _Made] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def graphs(self) -> list[CompiledGraph]:
        """What was made of Dynamo's graphs, as far as it may still be called."""
        return [made.graph for made in self._made.values()]

    def backend(self) -> Callable[..., Any]:
        """This as a backend of Dynamo's, which keeps each that it has seen for ever."""
        found = weakref.ref(self)

        def compile_graph(graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            compiler = found()
            assert compiler is not None
            return compiler(graph, inputs)

        answer, bits = self.options.answer, self.options.has_eagers_bits
        return traces_as_eager(compile_graph, lambda _: answer, has_eagers_bits=lambda _: bits)

    def go_by(
        self,
        state: tuple[Any, ...],
        former: tuple[Any, ...] | None = None,
        *,
        anew: bool = False,
    ) -> None:
        """Has Dynamo find, or compile, a program for this state of its inputs (OtherState).

        `anew`: not the one under the number that is known. Another graph, of other arguments, may
        have the same inputs, and was compiled under that number when their state was another one.
        """
        if former is not None:
            self._states.setdefault(former, self.state)
        number = self._states.get(state, self.state)
        if anew or number == self.state:
            number = max([*self._states.values(), self.state]) + 1
        self._states[state] = self.state = number

    def __call__(self, graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        must_trace_as_eager()
        made_for = program_class().kernel_settings()
        with under_way(f"compiling {self.name}"):
            written = self.write(graph, inputs)
        frozen = [
            i
            for i, value in enumerate(inputs)
            if isinstance(value, torch.Tensor)
            and may_require_gradient(value)
            and not value.requires_grad
        ]
        assert self.scope is not None
        with unset_fake_temporarily():
            kept = Kept(self.scope, graph, inputs, written.kept, written.update)
            program = StepProgram(
                functools.partial(self._load, written, frozen),
                written.positions,
                kept,
                written.regions.missed if written.regions else [],
                made_for,
                only_tensors=written.only_tensors,
            )
            program.open()
        self.programs += 1
        leave_out(graph, kept.looked_up)
        told = as_told(self.options, written.label)
        compiled = CompiledGraph.around(written.label, told, program)
        follow(compiled)
        found = weakref.ref(program)

        def run(*args: Any) -> list[Any]:
            alive = found()
            assert alive is not None
            return alive.run(args)

        called = [written.regions, written.writer.held]
        self._made[run] = _Made(program, compiled, called)
        return run

    def _load(self, written: WrittenStep, frozen: list[int]) -> Any:
        with unset_fake_temporarily():
            options = self.options.for_library()
            if written.update is not None:
                options = FOR_UPDATES | options
            with under_way(f"planning {written.label}"):
                program = program_class().of_text(written.text, written.device, options)
            trace_program(written.label, program)
            bind_constants(program, written.writer)
            program.set_frozen(ENTRY, frozen)
        return program

    def write(self, graph: fx.GraphModule, inputs: list[Any]) -> WrittenStep:
        """Raises ExportError. The loss becomes the first of `graph`'s outputs."""
        for value in inputs:
            if is_traceable_wrapper_subclass(value):
                kind = type(value).__name__
                raise ExportError(
                    self.name,
                    f"it reads a {kind}",
                    'use torch.compile(backend="gravure") and gravure.compile_optimizer, which '
                    "take it, or plain tensors",
                )
        if replaced := replaces_memory(graph):
            raise ExportError(self.name, replaced, CURE)
        label = f"{self.name}, {label_of(graph)}"
        specs = [input_spec(n, self.namer) for n in graph.graph.find_nodes(op="placeholder")]
        returned = _loss_first(graph, self.name)
        dynamo = DynamoGraph(graph=graph, inputs=list(inputs), context=TracingContext.get())
        traced, regions = self._traced(graph, dynamo, specs, label)
        _warn_of_lstms(traced, label)
        warn_of_repeated(traced, self.name, graph)
        update = None
        if self.ending is not None:
            update = Update(self.ending, inputs, draws=_draws(traced))
        step = step_entry(traced, carries_python=True)
        used: set[int] = set()
        if update is not None:
            used = update.write(step, step.arguments)
        with unset_fake_temporarily():
            device = device_of(traced.modules, label)
        examples = [value.meta.get("example_value") for value in output_node(graph).args[0]]
        return WrittenStep(
            label,
            f"{HEADER}\n{step.text(used)}",
            step.writer,
            device,
            [step.positions[i] for i in returned],
            [i for i, spec in enumerate(specs) if spec.role in ("parameter", "buffer")],
            all(isinstance(value, torch.Tensor) for value in [*inputs, *examples]),
            regions,
            update,
        )

    def _traced(
        self, graph: fx.GraphModule, dynamo: DynamoGraph, specs: list[InputSpec], label: str
    ) -> tuple[TracedGraphs, CompiledRegions | None]:
        """Forward and backward, and what was compiled of them."""

        def of_style(style: Style) -> tuple[TracedGraphs, CompiledRegions | None]:
            return self._of_style(graph, dynamo, specs, label, style)

        return in_first_style(self.options, label, of_style, symbolic=False)

    def _of_style(
        self,
        graph: fx.GraphModule,
        dynamo: DynamoGraph,
        specs: list[InputSpec],
        label: str,
        style: Style,
    ) -> tuple[TracedGraphs, CompiledRegions | None]:
        count = len(output_node(graph).args[0])
        names = ["loss", *[f"output{i}" for i in range(1, count)]]
        outputs = [OutputSpec(name, index=i) for i, name in enumerate(names)]
        paired = not self.options.eager_rng
        traced = differentiate(dynamo, specs, outputs, self.name, self.namer, paired, style)
        if not style.inductor:
            return traced, None
        wanted = self.options.regions
        if wanted == "undivided" or (wanted == "auto" and gains_undivided(traced)):
            traced = undivided(traced)
        step = step_entry(traced, carries_python=True)
        made = compile_graphs(
            [(module, "step") for module in traced.modules],
            {"step": step.writer.owners},
            f"{HEADER}\n{step.text()}",
            KnownNumbers(),
            style,
            self.options,
            label,
            donatable=donatable(traced),
        )
        forward, *backward = made.modules
        return replace(traced, forward=forward, backward=next(iter(backward), None)), made


def _draws(traced: TracedGraphs) -> bool:
    """Whether it draws random numbers, or has an operator that may."""
    nodes = (node for module in traced.modules for node in module.graph.nodes)
    return any(is_random(node) or repeats_draws(node) for node in nodes)


def _warn_of_lstms(traced: TracedGraphs, label: str) -> None:
    """PyTorch describes what oneDNN's LSTM returns in another dtype than it has."""
    for module in traced.modules:
        for node in module.graph.find_nodes(op="call_function", target=_LSTM):
            dtype = node.args[0].meta["val"].dtype
            if dtype != torch.float32:
                logger.warning(
                    "%s: gradients of an nn.LSTM in %s on the CPU may have other bits than "
                    "eager's; train it in float32, or use "
                    'torch.compile(model, backend="gravure"), which leaves it to eager',
                    label,
                    dtype,
                )
                return


def _loss_first(graph: fx.GraphModule, name: str) -> list[int]:
    """Makes the loss the graph's first output, and each output one of its own, without a gradient.

    Returns the position among them of each of the graph's former outputs.
    """
    marks = graph.graph.find_nodes(op="call_function", target=mark_loss)
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
    positions = [values.index(value) for value in former]
    with graph.graph.inserting_before(end):
        for i, value in enumerate(values):
            example = value.meta.get("example_value") if isinstance(value, fx.Node) else None
            if i and getattr(example, "requires_grad", False):
                values[i] = graph.graph.call_method("detach", (value,))
    end.args = (tuple(values),)
    graph.recompile()
    return positions

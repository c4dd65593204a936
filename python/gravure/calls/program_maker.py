"""Makes the programs of one graph of `torch.compile` from AOTAutograd's forward and backward."""

from __future__ import annotations

import functools
import itertools
import logging
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from ..errors import ExportError
from ..graphs.absent_tangents import without_tangents
from ..graphs.codegen import CompiledRegions, Style, compile_graphs
from ..graphs.devices import device_of
from ..graphs.donated import donatable
from ..graphs.gradient_terms import added, with_terms_apart
from ..graphs.known_numbers import KnownNumbers
from ..graphs.saved_bundle import viewed_input, without_bundle
from ..graphs.seeded_draws import without_inductor
from ..graphs.traced_graphs import TracedGraphs
from ..library.direct_calls import direct
from ..library.load import program_class
from ..library.progress import under_way
from ..options import CompileOptions
from ..text.entries import graph_entries
from ..text.entry_call import Call, Run
from ..torch_api.aot_autograd import boxed
from ..torch_api.autograd import keeps_graph
from ..torch_api.compile_lock import compile_lock
from ..torch_api.dispatch import below_autograd
from ..torch_api.fake_tensors import is_nested_number, unset_fake_temporarily
from .apart_programs import ApartProgram
from .instance import Instance
from .native_node import native_call
from .reports import trace_program
from .seen_results import ResultsSeen
from .written_program import LoadedFrom, WrittenProgram

_MOST_TEXTS = 64  # of programs that were made
_LSTM = torch.ops.aten.mkldnn_rnn_layer.default  # run alone it keeps nothing for its backward
logger = logging.getLogger("gravure")


class ProgramMaker:
    """The graphs of one graph of Dynamo's, and programs of them."""

    def __init__(
        self,
        label: str,
        traced: TracedGraphs,
        options: CompileOptions,
        style: Style,
        made_for: int | None = None,
        *,
        native: bool,
        seen: ResultsSeen | None = None,
    ) -> None:
        """`made_for`: the settings of kernels that it was traced under, if it is for these alone.

        `native`: autograd may be given a node of the library's. `seen`: what looks at its results.
        """
        self.label = label
        self.options = options
        self.style = style
        # As autograd sees them. Inductor's kernels have no bits of eager's.
        self.traced = replace(traced, terms={}) if style.inductor else traced
        self._graphs = without_bundle(self.traced)
        self._made_for = made_for
        self._native = native and traced.metadata is not None
        self._seen = seen
        self._texts: dict[Any, WrittenProgram] = {}
        self._known_sizes: dict[tuple[int, ...], None] = {}  # a set that has an order
        # The same by the gradients that the backward goes without, and whether terms are apart.
        self._variants: dict[tuple[tuple[int, ...], bool], TracedGraphs | None] = {}
        self._regions: list[CompiledRegions] = []  # of all texts, whose programs call them by name

    def as_it_is(self) -> Instance:
        """The graphs themselves."""
        forward, *rest = [boxed(as_aot_runs(module)) for module in self.traced.modules]
        return Instance(forward, rest[0] if rest else None)

    def make(
        self,
        known: dict[Any, int],
        *,
        keeps: bool,
        captures: bool = True,
        absent: tuple[int, ...] = (),
        apart: bool = False,
        like: LoadedFrom | None = None,
    ) -> Instance:
        """A program for these values of symbols. With `keeps` it is for one module's tensors.

        Its backward goes without the gradients that are `absent`, where it can (goes_without()).
        `apart`: it gives terms of gradients one by one, if there are any.
        `like`: a program for the same, which captures as well: it is not planned again.
        """
        if like is not None:
            written, program = like.written, like.program.again()
        else:
            written = self.text(known, absent, apart=apart)
            options = self.options.for_library() | ({} if captures else {"uncaptured": "1"})
            with under_way(f"planning {self.label}"):
                program = program_class().of_text(written.text, self.device, options)
            trace_program(self.label, program)
        if self._made_for is not None:
            program.set_made_for(self._made_for)
        calls, missed = written.calls, list(written.missed)
        for call in calls:
            inputs = len(call.taken) + len(call.bound)
            bind_fixed(program, call.entry, call.bound, inputs)
        native = beside = None
        if len(calls) > 1:
            if keeps and self._native and self._seen is not None:
                if written.sums:
                    beside = self._beside(known, absent)
                held = [*self._regions, *(call.held for call in calls), beside]
                number = beside.number if beside is not None else 0
                lists = written.autograd
                native = native_call(program, calls[0], lists, held, self.label, number, self._seen)
            if written.bundle is not None:
                written.bundle.bind(program)
                calls = written.bundle.calls
        logger.info("%s: made a program for %s", self.label, self.device)
        runs = [_run_of(program, call, keeps=keeps and i == 0) for i, call in enumerate(calls)]
        kept, sizes = calls[0] if keeps else None, tuple(known.values())
        made = LoadedFrom(program, written)
        if len(calls) == 1:
            return Instance(runs[0], None, made, kept, sizes, missed, captures=captures)
        run = functools.partial(program.run_uncaptured, calls[1].entry)
        again = calls[1].caller(run, keeps=False)
        last = runs[1]
        further = written.traced.apart

        def backward(args: list[Any]) -> list[Any]:
            # With retain_graph the saved values are needed again, and a replay overwrites them.
            results = again(args) if keeps_graph() else last(args)
            return added(results, further) if further else results

        return Instance(runs[0], backward, made, kept, sizes, missed, native, captures, beside)

    def _beside(self, known: dict[Any, int], absent: tuple[int, ...]) -> ApartProgram:
        """What is asked for a program of the same that gives terms of gradients one by one."""

        def make() -> LoadedFrom | None:
            with compile_lock, unset_fake_temporarily():
                return self.make(known, keeps=True, absent=absent, apart=True).made

        return ApartProgram(self.label, make)

    @property
    def known_sizes(self) -> list[tuple[int, ...]]:
        """The sizes for which programs were made, also where these are gone."""
        return list(self._known_sizes)

    @functools.cached_property
    def device(self) -> str:
        return device_of(self._graphs.modules, self.label)

    def text(
        self, known: dict[Any, int], absent: tuple[int, ...] = (), *, apart: bool = False
    ) -> WrittenProgram:
        """The program for these values of symbols."""
        key = tuple(known.items())
        apart = apart and bool(self._graphs.terms)
        if absent or apart:
            whole, graphs = self._variant((), apart), self._variant(absent, apart)
            assert whole is not None and graphs is not None
            text, calls = graph_entries(graphs, KnownNumbers(known), absent)
            return WrittenProgram(text, calls, [], whole, absent)
        if key not in self._texts:
            for module in self.traced.modules:
                _refuse_nested(module)
            self._texts[key] = self._compiled_text(KnownNumbers(known))
            self._known_sizes[tuple(known.values())] = None
            if len(self._texts) > _MOST_TEXTS:
                self._texts.pop(next(iter(self._texts)))
        return self._texts[key]

    def goes_without(self, absent: tuple[int, ...], *, apart: bool) -> bool:
        """Makes the backward without these gradients of outputs, if there can be one."""
        if self.style.inductor or not self._native or self._graphs.backward is None:
            return False
        return self._variant(absent, apart) is not None

    def _variant(self, absent: tuple[int, ...], apart: bool) -> TracedGraphs | None:
        key = absent, apart
        if key not in self._variants:
            self._variants[key] = self._make_variant(absent, apart)
        return self._variants[key]

    def _make_variant(self, absent: tuple[int, ...], apart: bool) -> TracedGraphs | None:
        if not absent:
            return with_terms_apart(self._graphs) if apart else self._graphs
        graphs = self._variant((), apart)
        assert graphs is not None and graphs.backward is not None
        first = len(graphs.saved_inputs)
        module = without_tangents(graphs.backward, [first + i for i in absent])
        return replace(graphs, backward=module) if module is not None else None

    def marker(self) -> tuple[int, int] | None:
        """A saved tensor, by whose address a backward knows which program ran the forward: its
        position among the forward's results, and among the backward's arguments.

        One that the forward makes in memory of its own, if there is one. A view of a parameter
        tells less: several modules may share it.
        """
        nodes, own = self.traced.saved, self.traced.own_results
        numbers = self.traced.saved_numbers
        tensors = [i for i, n in enumerate(nodes) if isinstance(n.meta.get("val"), torch.Tensor)]
        computed = [i for i in tensors if nodes[i].op != "placeholder"]
        made = [i for i in computed if viewed_input(nodes[i]) is None]
        for i in itertools.chain(made, computed, tensors):
            return own + i, numbers + i
        return None

    def _compiled_text(self, known: KnownNumbers) -> WrittenProgram:
        graphs = self._graphs
        text, calls = graph_entries(graphs, known)
        if not self.style.inductor:
            return WrittenProgram(text, calls, [], graphs)
        made = compile_graphs(
            [(module, call.entry) for module, call in zip(graphs.modules, calls, strict=True)],
            {call.entry: call.owners for call in calls},
            text,
            known,
            self.style,
            self.options,
            self.label,
            inference=graphs.backward is None,
            donatable=donatable(graphs, graphs.bundled_inputs),
        )
        self._regions.append(made)
        forward, *rest = made.modules
        compiled = replace(graphs, forward=forward, backward=rest[0] if rest else None)
        text, calls = graph_entries(compiled, known)
        return WrittenProgram(text, calls, made.missed, graphs)


def bind_fixed(program: Any, entry: str, fixed: dict[int, Any], inputs: int) -> None:
    """Binds what is the same in each call: what is `fixed`, by position; and the default random
    states, which passes added behind the `inputs` of the text. None stands for that of the call."""
    values = fixed | dict.fromkeys(range(inputs, len(program.inputs(entry))))
    program.bind(entry, list(values), list(values.values()))


def _run_of(program: Any, call: Call, *, keeps: bool) -> Run:
    run = direct(program, "run", call.entry, only_tensors=call.only_tensors)
    return call.caller(run, keeps=keeps)


def as_aot_runs(module: fx.GraphModule) -> Run:
    """One of AOTAutograd's graphs, run as AOTAutograd itself would."""
    module = without_inductor(module)
    if not module.graph.find_nodes(op="call_function", target=_LSTM):
        return lambda args: module(*args)

    def run(args: list[Any]) -> Any:
        with below_autograd():
            return module(*args)

    return run


def _refuse_nested(module: fx.GraphModule) -> None:
    for node in module.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else [value]:
            if is_nested_number(size):
                raise ExportError(
                    f"%{node.name}", "it belongs to a nested tensor", "pad to one dense tensor"
                )

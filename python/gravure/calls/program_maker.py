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
from ..graphs.codegen import CompiledRegions, Style, compile_graphs
from ..graphs.devices import device_of
from ..graphs.donated import donatable
from ..graphs.given_gradients import Forms, absent_alone, with_given
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
from .instance import Instance
from .native_node import native_call
from .programs_beside import ProgramsBeside
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
        # The same by the gradients that the backward is for, and whether terms are apart.
        self._variants: dict[tuple[Forms, bool], TracedGraphs | None] = {}
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
        forms: Forms = (),
        apart: bool = False,
        like: LoadedFrom | None = None,
    ) -> Instance:
        """A program for these values of symbols. With `keeps` it is for one module's tensors.

        Its backward is for such gradients as fitting() returns.
        `apart`: it gives terms of gradients one by one, if there are any.
        `like`: a program for the same, which captures as well: it is not planned again.
        """
        if like is not None:
            written, program = like.written, like.program.again()
        else:
            written = self.text(known, forms, apart=apart)
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
                beside = self._beside(known, written)
                held = [*self._regions, *(call.held for call in calls), beside]
                number, lists = beside.number, written.autograd
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

    def _beside(self, known: dict[Any, int], written: WrittenProgram) -> ProgramsBeside:
        """What is asked for programs of the same with another backward."""
        is_apart = bool(written.traced.apart)

        def make(forms: Forms, apart: bool) -> LoadedFrom | None:
            with compile_lock, unset_fake_temporarily():
                made = self.make(known, keeps=True, forms=forms, apart=apart or is_apart)
            return made.made if made.native is not None else None

        def fit(forms: Forms, apart: bool) -> Forms:
            with compile_lock, unset_fake_temporarily():
                return self.fitting(forms, apart=apart or is_apart)

        return ProgramsBeside(self.label, written.forms, make, fit, sums=written.sums)

    @property
    def known_sizes(self) -> list[tuple[int, ...]]:
        """The sizes for which programs were made, also where these are gone."""
        return list(self._known_sizes)

    @functools.cached_property
    def device(self) -> str:
        return device_of(self._graphs.modules, self.label)

    def text(
        self, known: dict[Any, int], forms: Forms = (), *, apart: bool = False
    ) -> WrittenProgram:
        """The program for these values of symbols."""
        key = tuple(known.items())
        apart = apart and bool(self._graphs.terms)
        if forms or apart:
            whole, graphs = self._variant((), apart), self._variant(forms, apart)
            assert whole is not None and graphs is not None
            absent = [i for i, form in enumerate(forms) if form.absent]
            text, calls = graph_entries(graphs, KnownNumbers(known), absent)
            return WrittenProgram(text, calls, [], whole, forms)
        if key not in self._texts:
            for module in self.traced.modules:
                _refuse_nested(module)
            self._texts[key] = self._compiled_text(KnownNumbers(known))
            self._known_sizes[tuple(known.values())] = None
            if len(self._texts) > _MOST_TEXTS:
                self._texts.pop(next(iter(self._texts)))
        return self._texts[key]

    def fitting(self, forms: Forms, *, apart: bool) -> Forms:
        """Of such gradients of outputs what a backward can be for: all of it, that some are absent,
        or nothing, (). The rest is brought into what the backward was traced for."""
        if self.style.inductor or not self._native or self._graphs.backward is None:
            return ()
        for some in (forms, absent_alone(forms)):
            if some and self._variant(some, apart) is not None:
                return some
        return ()

    def _variant(self, forms: Forms, apart: bool) -> TracedGraphs | None:
        key = forms, apart
        if key not in self._variants:
            self._variants[key] = self._make_variant(forms, apart)
        return self._variants[key]

    def _make_variant(self, forms: Forms, apart: bool) -> TracedGraphs | None:
        if not forms:
            return with_terms_apart(self._graphs) if apart else self._graphs
        graphs = self._variant((), apart)
        assert graphs is not None and graphs.backward is not None
        module = with_given(graphs.backward, len(graphs.saved_inputs), forms)
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

"""Makes the programs of one graph of `torch.compile` from AOTAutograd's forward and backward."""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from ..errors import ExportError
from ..graphs.absent_tangents import without_tangents
from ..graphs.codegen import Stretches, Style, compile_graphs
from ..graphs.known_numbers import KnownNumbers
from ..graphs.names import FrameNamer, InputSpec
from ..graphs.saved_bundle import spread_backward, spread_forward, viewed_input
from ..library.load import program_class
from ..options import CompileOptions
from ..text.aot_entries import Call, Run, device_of, write_entry
from ..text.program_text import HEADER
from ..torch_api.aot_autograd import boxed
from ..torch_api.autograd import keeps_graph
from ..torch_api.dispatch import below_autograd
from ..torch_api.fake_tensors import is_nested_number, is_sym_node
from .bound_bundle import bind_bundle
from .instance import Instance
from .native_node import Traced, native_call

_LSTM = torch.ops.aten.mkldnn_rnn_layer.default
logger = logging.getLogger("gravure")


@dataclass
class Half:
    """One of AOTAutograd's graphs: the forward, the backward, or the whole without a gradient."""

    module: fx.GraphModule
    specs: list[Any]  # of its placeholders: InputSpec or None; of a backward those after the saved
    bundled: range = range(0)  # results, or placeholders, that autograd sees as one


class ProgramMaker:
    """AOTAutograd's graphs, and programs of them. `backward` is None without a gradient."""

    def __init__(
        self, label: str, namer: FrameNamer, options: CompileOptions, style: Style
    ) -> None:
        self.label = label
        self.options = options
        self.style = style
        self.forward: Half | None = None
        self.backward: Half | None = None
        self.outputs = 0  # of the forward, without saved values
        self.traced: Traced | None = None  # where autograd may be given a node of the library's
        self._namer = namer
        self._spread: list[Half] = []
        self._texts: dict[Any, tuple[str, list[Call], list[str]]] = {}
        self._lean: dict[tuple[int, ...], Half] = {}  # backwards without some gradients
        self._stretches: list[Stretches] = []  # of all texts, whose programs call them by name

    @property
    def halves(self) -> list[Half]:
        assert self.forward is not None
        return [self.forward] + ([self.backward] if self.backward else [])

    @property
    def spread(self) -> list[Half]:
        """The graphs that programs are made of: without a bundle of saved values."""
        if not self._spread:
            ways = spread_forward, spread_backward
            for half, way in zip(self.halves, ways, strict=False):
                module, bundled = way(half.module)
                self._spread.append(Half(module, half.specs, bundled))
        return self._spread

    def as_it_is(self) -> Instance:
        """The graphs themselves."""
        forward, *rest = [boxed(as_it_is(half.module)) for half in self.halves]
        return Instance(forward, rest[0] if rest else None)

    def make(
        self,
        known: dict[Any, int],
        *,
        keeps: bool,
        captures: bool = True,
        absent: tuple[int, ...] = (),
    ) -> Instance:
        """A program for these values of symbols. With `keeps` it is for one module's tensors.

        Its backward goes without the gradients that are `absent`, where it can (goes_without()).
        """
        text, calls, missed = self.text(known, absent)
        device = self.device()
        options = self.options.for_library() | ({} if captures else {"uncaptured": "1"})
        program = program_class().of_text(text, device, options)
        for call in calls:
            _bind_fixed(program, call)
        native = None
        if len(calls) > 1:
            if keeps and self.traced is not None:
                graphs = [half.module for half in self.spread]
                held = [*self._stretches, *(call.held for call in calls)]
                native = native_call(
                    program, calls, *graphs, self.outputs, self.traced, held, absent
                )
            calls = bind_bundle(program, calls, *(half.bundled for half in self.spread))
        logger.info("%s: made a program for %s", self.label, device)
        runs = [_run_of(program, call, keeps=keeps and i == 0) for i, call in enumerate(calls)]
        kept, sizes = calls[0] if keeps else None, tuple(known.values())
        if len(calls) == 1:
            return Instance(runs[0], None, program, kept, sizes, missed, captures=captures)
        again = calls[1].caller(program.run_uncaptured, keeps=False)
        last = runs[1]

        def backward(args: list[Any]) -> list[Any]:
            # With retain_graph the saved values are needed again, and a replay overwrites them.
            return again(args) if keeps_graph() else last(args)

        return Instance(runs[0], backward, program, kept, sizes, missed, native, captures)

    @property
    def known_sizes(self) -> list[tuple[int, ...]]:
        """Those of all programs that were made."""
        return [tuple(value for _, value in key) for key in self._texts]

    def device(self) -> str:
        return device_of([half.module for half in self.spread], self.label)

    def text(
        self, known: dict[Any, int], absent: tuple[int, ...] = ()
    ) -> tuple[str, list[Call], list[str]]:
        """The program for these values of symbols, how its entries are called, what was missed."""
        key = tuple(known.items())
        if absent:
            halves = [self.spread[0], self._lean[absent]]
            return *self._text(halves, KnownNumbers(known), absent), []
        if key not in self._texts:
            for half in self.halves:
                _refuse_nested(half.module)
            self._texts[key] = self._compiled_text(KnownNumbers(known))
        return self._texts[key]

    def goes_without(self, absent: tuple[int, ...]) -> bool:
        """Makes the backward without these gradients of outputs, if there can be one."""
        if self.style.inductor or self.traced is None:
            return False
        if absent not in self._lean:
            half = self.spread[1]
            first = len(half.module.graph.find_nodes(op="placeholder")) - len(half.specs)
            module = without_tangents(half.module, [first + i for i in absent])
            if module is None:
                return False
            self._lean[absent] = replace(half, module=module)
        return True

    def marker(self) -> tuple[int, int] | None:
        """A saved tensor: its position among the forward's results and the backward's arguments.

        One that the forward makes in memory of its own, if there is one: it tells which program
        ran. A view of a parameter does not, which several modules may share.
        """
        assert self.forward is not None
        nodes = _results(self.forward.module)[self.outputs :]
        numbers = sum(1 for node in nodes if is_sym_node(node))
        tensors = [i for i, n in enumerate(nodes) if isinstance(n.meta.get("val"), torch.Tensor)]
        computed = [i for i in tensors if nodes[i].op != "placeholder"]
        made = [i for i in computed if viewed_input(nodes[i]) is None]
        for i in itertools.chain(made, computed, tensors):
            return self.outputs + i, numbers + i
        return None

    def _compiled_text(self, known: KnownNumbers) -> tuple[str, list[Call], list[str]]:
        halves = self.spread
        text, calls = self._text(halves, known)
        if not self.style.inductor:
            return text, calls, []
        graphs = [(half.module, call.entry) for half, call in zip(halves, calls, strict=True)]
        owners = {call.entry: call.owners for call in calls}
        made = compile_graphs(
            graphs,
            owners,
            text,
            known,
            self.style,
            self.options,
            self.label,
            inference=self.backward is None,
        )
        self._stretches.append(made)
        compiled = [replace(half, module=m) for m, half in zip(made.modules, halves, strict=True)]
        return *self._text(compiled, known), made.missed

    def _text(
        self, halves: list[Half], known: KnownNumbers, absent: tuple[int, ...] = ()
    ) -> tuple[str, list[Call]]:
        forward, backward = halves[0], halves[1] if len(halves) > 1 else None

        def role(i: int, value: str) -> str:
            return f'output "{i}"' if i < self.outputs else f'saved "{value[1:]}"'

        name = "step" if backward is None else "forward"
        text, call = write_entry(name, forward.module, forward.specs, role, self._namer, known)
        if backward is None:
            return f"{HEADER}\n{text}", [call]
        saved = _saved_specs(forward.module, self.outputs, call)
        names = [spec.name for spec in forward.specs if spec and spec.role != "rng_state"]

        def gradient(i: int, value: str) -> str:
            return f'gradient "{names[i]}"' if i < len(names) else f'output "{i}"'

        specs = saved + backward.specs
        for i, node in enumerate(backward.module.graph.find_nodes(op="placeholder")):
            if i in backward.bundled and not node.users:
                specs[i] = None  # saved to be watched, not read
            if i >= len(saved) and i - len(saved) in absent:
                specs[i] = None
        back, back_call = write_entry(
            "backward", backward.module, specs, gradient, self._namer, known, call.kinds
        )
        return f"{HEADER}\n{text}\n{back}", [call, back_call]


def _bind_fixed(program: Any, call: Call) -> None:
    """Binds what is the same for every module."""
    inputs = len(program.inputs(call.entry))
    # Default random states, which the passes added, come last.
    added = range(len(call.taken) + len(call.bound), inputs)
    values = call.bound | dict.fromkeys(added)
    program.bind(call.entry, list(values), list(values.values()))


def _run_of(program: Any, call: Call, *, keeps: bool) -> Run:
    return call.caller(program.run_tensors if call.only_tensors else program.run, keeps=keeps)


def as_it_is(module: fx.GraphModule) -> Run:
    """The graph as AOTAutograd would run it."""
    if not module.graph.find_nodes(op="call_function", target=_LSTM):
        return lambda args: module(*args)

    def run(args: list[Any]) -> Any:
        with below_autograd():
            return module(*args)

    return run


def _results(module: fx.GraphModule) -> list[Any]:
    return list(next(iter(module.graph.find_nodes(op="output"))).args[0])


def _saved_specs(forward: fx.GraphModule, outputs: int, call: Call) -> list[Any]:
    """The backward's first placeholders: what the forward saves, its numbers moved to the front."""
    nodes = _results(forward)[outputs:]
    values = call.values[outputs:]
    numbers = sum(1 for node in nodes if is_sym_node(node))
    tensors = len(values) - numbers
    specs: list[Any] = []
    first: dict[str, int] = {}
    for i, value in enumerate(values[tensors:] + values[:tensors]):
        if not value:
            specs.append(None)
        elif first.setdefault(value, i) != i:
            specs.append(first[value])
        else:
            specs.append(InputSpec("saved", value[1:], None))
    return specs


def _refuse_nested(module: fx.GraphModule) -> None:
    for node in module.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else [value]:
            if is_nested_number(size):
                raise ExportError(
                    f"%{node.name}", "it belongs to a nested tensor", "pad to one dense tensor"
                )

"""A graph of `torch.compile` and the programs made of it: one, or one for each set of sizes."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._C._autograd import _get_current_graph_task_keep_graph
from torch._functorch.partitioners import is_sym_node
from torch._subclasses.fake_tensor import unset_fake_temporarily

from .aot_entries import Call, FrameNamer, Run, device_of, write_entry
from .errors import ExportError
from .known_numbers import KnownNumbers
from .names import InputSpec
from .options import CompileOptions
from .program_text import HEADER
from .report import ending
from .runtime import program_class

_NUMBERS = itertools.count(1)
logger = logging.getLogger("gravure")

# Where a symbol's value is found: which argument, and which of its sizes (-1: itself).
Place = tuple[int, int]


@dataclass
class Half:
    """One of AOTAutograd's graphs: the forward, the backward, or the whole without a gradient."""

    module: fx.GraphModule
    specs: list[Any]  # of its placeholders: InputSpec or None; of a backward those after the saved


@dataclass
class Instance:
    """One loaded program, or the graphs themselves where there is none."""

    forward: Run
    backward: Run | None
    program: Any = None
    sizes: tuple[int, ...] = ()


class CompiledGraph:
    """Runs one graph. `failure` is why it runs as it is, without a program; "" if it does not."""

    def __init__(self, label: str, namer: FrameNamer, options: CompileOptions) -> None:
        self.number = next(_NUMBERS)
        self.label = label
        self.options = options
        self.failure = ""
        self.instances: dict[tuple[int, ...], Instance] = {}  # by sizes
        self._namer = namer
        self._forward: Half | None = None
        self._backward: Half | None = None
        self._outputs = 0  # of the forward, without saved values
        self._places: list[dict[Any, Place]] = []  # by half
        self._symbols: list[Any] = []
        self._any: Instance | None = None  # for any sizes
        self._by_backward: dict[tuple[int, ...], Instance] = {}
        self._run_forward: Run | None = None
        self._run_backward: Run | None = None

    def __del__(self) -> None:
        ending(self)

    @classmethod
    def around(cls, label: str, options: CompileOptions, instance: Instance) -> CompiledGraph:
        """What is loaded already."""
        graph = cls(label, FrameNamer(), options)
        graph._any = instance
        return graph

    # ---- what AOTAutograd compiles

    def take_forward(self, half: Half, outputs: int) -> Run:
        self._forward, self._outputs = half, outputs
        return boxed(lambda args: self._run_forward(args))

    def take_backward(self, half: Half) -> Run:
        self._backward = half
        return boxed(lambda args: self._run_backward(args))

    def finish(self) -> None:
        """Both graphs are here: makes the program now, unless sizes are still open."""
        self._places = [_places(half.module) for half in self._halves()]
        self._symbols = list(self._places[0])
        for places in self._places[1:]:  # what the forward brings about itself is no key
            for symbol in [s for s in places if s not in self._places[0]]:
                del places[symbol]
        if self._symbols:
            self._run_forward, self._run_backward = self._dispatch_forward, self._dispatch_backward
            return
        instance = self._any = self._make(())
        self._run_forward, self._run_backward = instance.forward, instance.backward

    def _halves(self) -> list[Half]:
        assert self._forward is not None
        return [self._forward] + ([self._backward] if self._backward else [])

    def all_instances(self) -> list[Instance]:
        return [*self.instances.values()] + ([self._any] if self._any else [])

    # ---- sizes

    def _dispatch_forward(self, args: list[Any]) -> Any:
        sizes = tuple([_read(args, self._places[0][s]) for s in self._symbols])
        instance = self.instances.get(sizes)
        if instance is None:
            instance = self._instance(sizes)
        return instance.forward(args)

    def _dispatch_backward(self, args: list[Any]) -> Any:
        sizes = tuple([_read(args, place) for place in self._places[1].values()])
        instance = self._by_backward.get(sizes) or self._any
        assert instance is not None and instance.backward is not None
        return instance.backward(args)

    def _instance(self, sizes: tuple[int, ...]) -> Instance:
        """A new instance for these sizes, or the one for any sizes when there are too many."""
        if self._any is None and len(self.instances) >= self.options.max_shapes:
            logger.warning(
                "%s was called with more than %d sets of sizes; further ones run uncaptured; "
                "raise the option max_shapes, or pad to fewer sizes",
                self.label,
                self.options.max_shapes,
            )
            self._any = self._make(())
        if self._any is not None:
            return self._any
        instance = self._make(sizes)
        if instance.program is None:
            self._any = instance
            return instance
        self.instances[sizes] = instance
        if self._backward is not None:
            known = dict(zip(self._symbols, sizes, strict=True))
            key = tuple([known[symbol] for symbol in self._places[1]])
            self._by_backward[key] = instance
        return instance

    # ---- programs

    def _make(self, sizes: tuple[int, ...]) -> Instance:
        try:
            with unset_fake_temporarily():
                return self._load(sizes)
        except Exception as error:
            if self.options.on_missed == "raise":
                raise
            self.failure = str(error).splitlines()[0]
            logger.warning(
                "%s runs as it is, without a program: %s",
                self.label,
                self.failure,
                exc_info=not isinstance(error, (ExportError, RuntimeError)),
            )
        forward, *rest = [boxed(half.module) for half in self._halves()]
        return Instance(forward, rest[0] if rest else None)

    def _load(self, sizes: tuple[int, ...]) -> Instance:
        for half in self._halves():
            _refuse_nested(half.module)
        known = KnownNumbers(dict(zip(self._symbols, sizes, strict=False)))
        text, calls = self._text(known)
        device = device_of([half.module for half in self._halves()], self.label)
        program = program_class().of_text(text, device, self.options.for_library())
        logger.info("%s: made a program for %s", self.label, device)
        runs = []
        for call in calls:
            inputs = len(program.inputs(call.entry))
            # Default random states, which the passes added, come last.
            added = range(len(call.taken) + len(call.bound), inputs)
            values = call.bound | dict.fromkeys(added)
            program.bind(call.entry, list(values), list(values.values()))
            runs.append(call.caller(program.run))
        if len(calls) == 1:
            return Instance(runs[0], None, program, sizes)
        kept = calls[1].caller(program.run_uncaptured)
        last = runs[1]

        def backward(args: list[Any]) -> list[Any]:
            # With retain_graph the saved values are needed again, and a replay overwrites them.
            return kept(args) if _get_current_graph_task_keep_graph() else last(args)

        return Instance(runs[0], backward, program, sizes)

    def _text(self, known: KnownNumbers) -> tuple[str, list[Call]]:
        forward, backward = self._forward, self._backward
        assert forward is not None

        def role(i: int, value: str) -> str:
            return f'output "{i}"' if i < self._outputs else f'saved "{value[1:]}"'

        name = "step" if backward is None else "forward"
        text, call = write_entry(name, forward.module, forward.specs, role, self._namer, known)
        if backward is None:
            return f"{HEADER}\n{text}", [call]
        saved = _saved_specs(forward.module, self._outputs, call)
        names = [spec.name if spec else "" for spec in forward.specs if not _is_rng(spec)]
        names = [n for n in names if n]

        def gradient(i: int, value: str) -> str:
            return f'gradient "{names[i]}"' if i < len(names) else f'output "{i}"'

        specs = saved + backward.specs
        back, back_call = write_entry(
            "backward", backward.module, specs, gradient, self._namer, known
        )
        return f"{HEADER}\n{text}\n{back}", [call, back_call]


def boxed(run: Callable[..., Any]) -> Run:
    """Takes its arguments as one list, which AOTAutograd asks for by this mark."""
    if isinstance(run, fx.GraphModule):
        module = run
        return boxed(lambda args: module(*args))
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _is_rng(spec: InputSpec | None) -> bool:
    return spec is not None and spec.role == "rng_state"


def _saved_specs(forward: fx.GraphModule, outputs: int, call: Call) -> list[Any]:
    """The backward's first placeholders: what the forward saves, its numbers moved to the front."""
    nodes = next(iter(forward.graph.find_nodes(op="output"))).args[0][outputs:]
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


def _read(args: list[Any], place: Place) -> int:
    value = args[place[0]]
    return value if place[1] < 0 else value.shape[place[1]]


def _refuse_nested(module: fx.GraphModule) -> None:
    for node in module.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else [value]:
            if isinstance(size, torch.SymInt) and size.node.is_nested_int():
                raise ExportError(
                    f"%{node.name}", "it belongs to a nested tensor", "pad to one dense tensor"
                )


def _places(module: fx.GraphModule) -> dict[Any, Place]:
    """Where each integer symbol of the graph's arguments is found, as far as one stands alone."""
    places: dict[Any, Place] = {}
    for i, node in enumerate(module.graph.find_nodes(op="placeholder")):
        value = node.meta.get("val")
        sizes = list(value.shape) if isinstance(value, torch.Tensor) else [value]
        for d, size in enumerate(sizes):
            symbolic = isinstance(size, torch.SymInt) and not size.node.is_nested_int()
            if symbolic and size.node.expr.is_Symbol:
                places.setdefault(size.node.expr, (i, d if isinstance(value, torch.Tensor) else -1))
    return places

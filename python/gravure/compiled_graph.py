"""Runs a graph of `torch.compile`: chooses the program for the sizes and the module at hand."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._C._autograd import _get_current_graph_task_keep_graph
from torch._subclasses.fake_tensor import unset_fake_temporarily

from .aot_entries import FrameNamer, Run
from .codegen import ATEN, Style
from .errors import ExportError
from .native_node import Traced
from .options import CompileOptions
from .program_maker import Half, Instance, ProgramMaker, boxed
from .report import ending

_NUMBERS = itertools.count(1)
_PENDING = 4096  # backwards that are still to come, at most
logger = logging.getLogger("gravure")

# Where a symbol's value is found: which argument, and which of its sizes (-1: itself).
Place = tuple[int, int]
# What a program is for: sizes, and the module, by its first parameter or buffer.
Key = tuple[tuple[int, ...], int]


class CompiledGraph:
    """Runs one graph. `failure` is why it runs as it is, without a program; "" if it does not.

    Modules of one class share a graph of Dynamo's (layers that are compiled one by one), and a
    program is captured with the addresses of one: each module has its own.
    """

    def __init__(
        self,
        label: str,
        namer: FrameNamer,
        options: CompileOptions,
        style: Style = ATEN,
    ) -> None:
        self.number = next(_NUMBERS)
        self.label = label
        self.options = options
        self.failure = ""
        self.graph_break = ""  # where Dynamo ended it before its function did, and why
        self._maker = ProgramMaker(label, namer, options, style)
        self._instances: dict[Key, Instance] = {}
        self._any: Instance | None = None  # for all sizes and modules
        self._spare: Instance | None = None  # made while compiling, for the first call
        self._current: Instance | None = None  # of the last call
        self._several = False
        self._symbols: dict[Any, Place] = {}
        self._backward_symbols: dict[Any, Place] = {}  # those that it is given, too
        self._first_kept = -1  # position of the first parameter or buffer
        self._marker: tuple[int, int] | None = None
        self._givers: dict[int, Instance] = {}  # by the address of what their forward saved

    def __del__(self) -> None:
        ending(self)

    @classmethod
    def around(cls, label: str, options: CompileOptions, instance: Instance) -> CompiledGraph:
        """What is loaded already."""
        graph = cls(label, FrameNamer(), options)
        graph._any = instance
        return graph

    def all_instances(self) -> list[Instance]:
        others = [i for i in (self._spare, self._any) if i is not None]
        return [*self._instances.values(), *others]

    # ---- what AOTAutograd compiles

    def take_forward(self, half: Half, outputs: int) -> Run:
        self._maker.forward, self._maker.outputs = half, outputs
        return self._run_forward

    def take_traced(self, traced: Traced) -> None:
        """Before finish(): autograd may be given a node of the library's."""
        self._maker.traced = traced

    def take_backward(self, half: Half) -> Run:
        self._maker.backward = half
        return self._run_backward

    def finish(self) -> None:
        """Both graphs are here: makes the first program now, unless sizes are still open."""
        halves = self._maker.halves
        self._symbols = _places(halves[0].module)
        roles = [getattr(spec, "role", "") for spec in halves[0].specs]
        kept = [i for i, role in enumerate(roles) if role in ("parameter", "buffer")]
        self._first_kept = kept[0] if kept else -1
        if len(halves) > 1:
            self._marker = self._maker.marker()
            found = _places(halves[1].module)
            self._backward_symbols = {s: found[s] for s in self._symbols if s in found}
        if not self._symbols:
            self._spare = self._make((), keeps=True)

    # ---- calls

    @property
    def may_run_native(self) -> bool:
        """Whether the program that was made first can be a node of autograd's."""
        return any(instance.native is not None for instance in self.all_instances())

    def run_native(self, args: Sequence[Any]) -> list[Any] | None:
        """The results of the graph, as a node of autograd's; None, and nothing has run, where it
        needs AOTAutograd's wrapper."""
        native = self._instance_for(args).native
        return None if native is None else native(args)

    def _instance_for(self, args: Sequence[Any]) -> Instance:
        instance = self._current
        if (
            instance is None
            or instance is self._any
            or not instance.holds(args)
            or (self._symbols and instance.sizes != _read(args, self._symbols))
        ):
            instance = self._choose(args)
        return instance

    @boxed
    def _run_forward(self, args: list[Any]) -> Any:
        instance = self._instance_for(args)
        results = instance.forward(args)
        if self._several and self._marker is not None:
            if len(self._givers) >= _PENDING:
                self._givers.clear()
            self._givers[results[self._marker[0]].data_ptr()] = instance
        return results

    @boxed
    def _run_backward(self, args: list[Any]) -> Any:
        instance = self._giver(args) if self._several else self._current
        assert instance is not None and instance.backward is not None
        return instance.backward(args)

    def _giver(self, args: list[Any]) -> Instance:
        """Whose forward this backward belongs to, by what it saved.

        Where that is not known (saved values that were moved), it is a program for the same sizes:
        the backward runs uncaptured there, and right.
        """
        giver = None
        if self._marker is not None:
            address = args[self._marker[1]].data_ptr()
            again = _get_current_graph_task_keep_graph()
            giver = self._givers.get(address) if again else self._givers.pop(address, None)
        sizes = _read(args, self._backward_symbols)
        if giver is not None and (giver is self._any or self._in_backward(giver.sizes) == sizes):
            return giver
        alike = (i for i in self._instances.values() if self._in_backward(i.sizes) == sizes)
        found = next(alike, None) or self._any
        assert found is not None
        return found

    def _in_backward(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        known = dict(zip(self._symbols, sizes, strict=True))
        return tuple([known[symbol] for symbol in self._backward_symbols])

    def _choose(self, args: Sequence[Any]) -> Instance:
        sizes = _read(args, self._symbols)
        key = sizes, id(args[self._first_kept]) if self._first_kept >= 0 else 0
        instance = self._instances.get(key)
        if instance is None:
            instance = self._instance(key)
            self._several = len(self._instances) + (self._any is not None) > 1
        if not instance.holds(args) or not instance.kept:
            instance.keep(args)
        self._current = instance
        return instance

    def _instance(self, key: Key) -> Instance:
        """A new instance, or the one for all where there are too many."""
        if self._any is None and (excess := self._excess(key)):
            if self.options.raises:
                raise ExportError(self.label, *excess)
            logger.warning("%s: %s; further ones run uncaptured; %s", self.label, *excess)
            self._any = self._make((), keeps=False)
        if self._any is not None:
            return self._any
        instance = self._spare or self._make(key[0], keeps=True)
        self._spare = None
        if instance.program is None:
            self._any = instance
        else:
            self._instances[key] = instance
        return instance

    def _excess(self, key: Key) -> tuple[str, str] | None:
        """What there is too much of for another program, and the remedy."""
        sizes, modules = (
            (set(part) for part in zip(*self._instances, strict=True))
            if (self._instances)
            else (set(), set())
        )
        if key[0] not in sizes and len(sizes) >= self.options.max_shapes:
            return (
                f"it is called with more than {len(sizes)} sets of sizes",
                "raise the option max_shapes, or pad to fewer sizes",
            )
        if key[1] not in modules and len(modules) >= self.options.max_modules:
            return (
                f"it is called for more than {len(modules)} modules",
                "raise the option max_modules",
            )
        return None

    def _make(self, sizes: tuple[int, ...], *, keeps: bool) -> Instance:
        try:
            with unset_fake_temporarily():
                known = dict(zip(self._symbols, sizes, strict=False))
                return self._maker.make(known, keeps=keeps)
        except Exception as error:
            # As a whole by Inductor is only a try: it will be made anew.
            if self.options.raises or self._maker.style.whole:
                raise
            self.failure = str(error).splitlines()[0]
            logger.warning(
                "%s runs as it is, without a program: %s",
                self.label,
                self.failure,
                exc_info=not isinstance(error, (ExportError, RuntimeError)),
            )
        return self._maker.as_it_is()


def _read(args: Sequence[Any], symbols: dict[Any, Place]) -> tuple[int, ...]:
    return tuple([args[i] if d < 0 else args[i].shape[d] for i, d in symbols.values()])


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

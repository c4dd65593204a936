"""The programs of a function that changes its arguments in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import ExportError
from ..graphs.recorded_numbers import Unrecorded
from ..graphs.update_recorder import record
from ..options import CompileOptions
from ..torch_api.dtensors import layout_of
from ..torch_api.operators import pytree
from .loaded_update import LoadedUpdate, SharedMemory
from .outside_values import OutsideValues, is_plain
from .recorded_step import refuse_kinds
from .said_once import SaidOnce
from .settings import surroundings

_MOST_PROGRAMS = 16
_MOST_REFUSED = 256
_AS_IT_IS = "it runs as it is"


class UpdateFunction:
    """Programs by all that is no tensor's contents and no float."""

    def __init__(self, fn: Callable[..., Any], options: CompileOptions) -> None:
        self.programs = 0  # made so far
        self.own_calls = 0  # that the function itself ran
        self._fn = fn
        self._name = getattr(fn, "__name__", type(fn).__name__)
        self._options = options
        self._outside = OutsideValues(fn)
        self._made: dict[Any, list[LoadedUpdate]] = {}
        self._refused: set[Any] = set()
        self._said = SaidOnce()

    def __call__(self, args: Any, kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        numbers = [float(leaf) for leaf in leaves if isinstance(leaf, float)]
        try:
            key = (spec, surroundings(), *map(_kind, leaves), *self._outside.read())
            refused = key in self._refused
        except ExportError as error:
            self._say(error.reason)
            refused, key = True, ()
        except (TypeError, RuntimeError) as error:  # no key; or a sparse tensor has no strides
            self._say(f"an argument is of a kind that no program takes ({error})")
            refused, key = True, ()
        if refused or not tensors:
            self.own_calls += 1
            return self._fn(*args, **kwargs)
        for program in self._made.get(key, ()):
            program.watch(tensors)  # other tensors than in the last call, perhaps
            if program.holds(numbers):
                break
        else:
            try:
                program = self._make(key, leaves, spec, tensors, numbers)
            except Exception as error:
                if len(self._refused) >= _MOST_REFUSED:
                    self._refused.clear()
                self._refused.add(key)
                self._say(error.reason if isinstance(error, ExportError) else repr(error))
                self.own_calls += 1
                return self._fn(*args, **kwargs)
        try:
            program.run(tensors, numbers)
        except SharedMemory as shared:
            self._say(shared.reason)
            self.own_calls += 1
            return self._fn(*args, **kwargs)
        return None

    def _make(
        self, key: Any, leaves: list[Any], spec: Any, tensors: list[Tensor], numbers: list[float]
    ) -> LoadedUpdate:
        if self.programs >= _MOST_PROGRAMS:
            what = f"it has {_MOST_PROGRAMS} programs already: its arguments are of too many kinds,"
            what += " or what its code reads besides changes too often"
            raise Unrecorded(self._name, what, _AS_IT_IS)
        refuse_kinds(tensors)
        if len(set(map(id, tensors))) < len(tensors):
            raise Unrecorded(self._name, "a tensor comes twice among its arguments", _AS_IT_IS)

        def run(fakes: list[Tensor], values: list[float]) -> None:
            given, floats = iter(fakes), iter(values)
            stand_ins = [
                next(given) if isinstance(leaf, Tensor) else
                next(floats) if isinstance(leaf, float) else leaf
                for leaf in leaves
            ]  # fmt: skip
            args, kwargs = pytree.tree_unflatten(stand_ins, spec)
            with torch.no_grad():
                result = self._fn(*args, **kwargs)
            if result is not None:
                kind = "tensor" if isinstance(result, Tensor) else type(result).__name__
                what = f"it returns a {kind}, and a program returns None"
                raise Unrecorded(self._name, what, _AS_IT_IS)

        update = record(run, tensors, numbers)
        inputs = [("buffer", f"argument{i}", tensor) for i, tensor in enumerate(tensors)]
        program = LoadedUpdate(self._name, update, inputs, self._options)
        self._made.setdefault(key, []).append(program)
        self.programs += 1
        return program

    def _say(self, reason: str) -> None:
        self._said(reason, "compile_update: %s runs as it is: %s", self._name)


def _kind(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return type(leaf), leaf.dtype, leaf.device, layout_of(leaf)
    if isinstance(leaf, float):
        return float
    if not is_plain(leaf):  # it may change, and be the same object
        raise TypeError(f"a {type(leaf).__name__}")
    return type(leaf), leaf

"""What a function's code reads besides its arguments, where that is plain: numbers, strings and
lists of them, in its closure, in globals, in its defaults, and in attributes of objects, classes
and modules there; and which functions it calls.

A program has them as constants, so they are part of what it is for.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any

import torch
from torch import Tensor

from ..graphs.recorded_numbers import Unrecorded

_TOLD_BY_EQUALITY = (NoneType, bool, int, float, complex, str, bytes, torch.dtype, torch.device,
          torch.memory_format, torch.layout, torch.Size)  # fmt: skip
_LISTS = (tuple, list, dict, set, frozenset)
_DEEPEST = 4  # attributes of attributes
_NOTHING = object()


def is_plain(value: Any) -> bool:
    """Whether a value says by `==` all that code can find out about it."""
    return isinstance(value, _TOLD_BY_EQUALITY)


Look = Callable[[], Any]


class OutsideValues:
    """Of one function, and of what it calls that is written in Python and not PyTorch's."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self._looks: list[tuple[str, Look]] | None = None
        self._met: list[tuple[Look, Any]] = []  # functions and objects on the way to values
        self._functions: dict[FunctionType, CodeType] = {}
        self._seen: set[int] = set()
        self._names: set[str] = set()
        self._refusal: Unrecorded | None = None

    def read(self) -> Iterator[Any]:
        """As parts of a key. Raises Unrecorded for an attribute that is computed."""
        if self._refusal is not None:
            raise self._refusal
        if self._looks is None or not self._is_as_found():
            self._looks = self._find()
        for name, look in self._looks:
            yield name, _frozen(_value(look))
        yield from self._functions.items()

    def _is_as_found(self) -> bool:
        """Whether all that has names to read is what it was, and each function has its code."""
        codes = all(fn.__code__ is code for fn, code in self._functions.items())
        return codes and all(_value(look) is met for look, met in self._met)

    def _find(self) -> list[tuple[str, Look]]:
        self._names.clear()
        try:
            names, found = -1, {}
            while len(self._names) > names:  # all that is read of one object may be of another, too
                names = len(self._names)
                self._seen.clear()
                self._met.clear()
                self._functions.clear()
                found = dict(self._below("", lambda: self._fn, 0))
        except Unrecorded as error:
            self._refusal = error
            raise
        return list(found.items())

    def _below(self, name: str, look: Look, depth: int) -> Iterator[tuple[str, Look]]:
        """A value, or what code may read of it. No two ways to one have the same name."""
        value = _value(look)
        if is_plain(value) or isinstance(value, _LISTS):
            yield name, look
            yield from self._members(name, look, value, depth)
        elif isinstance(value, functools.partial):
            yield from self._below(f"{name} args", lambda: (look().args, look().keywords), depth)
            yield from self._below(f"{name} func", lambda: look().func, depth)
        elif isinstance(value, MethodType):
            yield from self._below(f"{name} self", lambda: look().__self__, depth)
            yield from self._below(f"{name} func", lambda: look().__func__, depth)
        elif isinstance(value, FunctionType):
            yield from self._function(name, look, value)
        elif value is not _NOTHING and not isinstance(value, (Tensor, torch.Generator)):
            yield from self._object(name, look, value, depth)

    def _members(self, name: str, look: Look, value: Any, depth: int) -> Iterator[tuple[str, Look]]:
        """The members of a list that are neither plain nor tensors."""
        if depth >= _DEEPEST or not isinstance(value, (tuple, list, dict)):
            return
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, member in list(pairs):
            inner = functools.partial(lambda of, at: of()[at], look, key)
            if isinstance(member, _LISTS):  # whose plain members the whole list has
                yield from self._members(f"{name}[{key!r}]", inner, member, depth + 1)
            elif not is_plain(member):
                yield from self._below(f"{name}[{key!r}]", inner, depth + 1)

    def _function(self, name: str, look: Look, fn: FunctionType) -> Iterator[tuple[str, Look]]:
        """What its names stand for, and those of the functions that it calls."""
        if not self._is_new(look, fn):
            return
        module = str(fn.__globals__.get("__name__", ""))
        is_wrapper = hasattr(fn, "__wrapped__")
        if is_wrapper:
            yield from self._below(f"{name} wrapped", lambda: look().__wrapped__, 0)
        if module.startswith("torch._") or (is_wrapper and _is_of_torch(module)):
            return
        self._functions[fn] = fn.__code__
        yield from self._below(f"{name} defaults", lambda: look().__defaults__, 0)
        yield from self._below(f"{name} keywords", lambda: look().__kwdefaults__, 0)
        cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
        for code in _codes(fn.__code__):
            self._names.update(code.co_names)
        for cell_name, cell in cells.items():
            yield from self._below(f"{name} {cell_name}", lambda c=cell: c.cell_contents, 0)
        for code in _codes(fn.__code__):
            for global_name in code.co_names:
                if global_name in fn.__globals__:
                    inner = functools.partial(fn.__globals__.__getitem__, global_name)
                    yield from self._below(f"{name}:{global_name}", inner, 0)

    def _object(self, name: str, look: Look, value: Any, depth: int) -> Iterator[tuple[str, Look]]:
        """What code may read of an object, a class or a module."""
        is_namespace = isinstance(value, (ModuleType, type))
        if depth >= _DEEPEST or (is_namespace and _is_library(value)):
            return
        if not self._is_new(look, value):
            return
        call = inspect.getattr_static(type(value), "__call__", None)
        if isinstance(call, FunctionType) and not _is_of_torch(str(call.__module__)):
            yield from self._below(f"{name}()", lambda: type(look()).__call__, depth)
        for attribute in sorted(self._names):
            static = inspect.getattr_static(value, attribute, _NOTHING)
            if static is _NOTHING and not hasattr(type(value), "__getattr__"):
                continue
            if is_namespace and isinstance(static, property):
                continue
            if isinstance(static, property) and not _is_torchs(value):
                what = f"reads {type(value).__name__}.{attribute}, which is computed"
                raise Unrecorded("its code", what, "it runs as it is")
            if isinstance(static, FunctionType) and not is_namespace and _is_torchs(value):
                continue
            # By the whole way: each object on it may be another one later.
            inner = functools.partial(lambda of, at: getattr(of(), at), look, attribute)
            yield from self._below(f"{name}.{attribute}", inner, depth + 1)

    def _is_new(self, look: Look, value: Any) -> bool:
        self._met.append((look, value))
        if id(value) in self._seen:
            return False
        self._seen.add(id(value))
        return True


def _value(look: Look) -> Any:
    try:
        return look()
    except Exception:  # it is gone, or not there yet
        return _NOTHING


def _is_of_torch(module: str) -> bool:
    return module.partition(".")[0] == "torch"


def _is_library(value: Any) -> bool:
    """Whether a module or class is PyTorch's or NumPy's, or comes with Python."""
    module = value.__name__ if isinstance(value, ModuleType) else value.__module__
    first = str(module).partition(".")[0]
    return first in ("torch", "numpy") or first in sys.stdlib_module_names


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _is_torchs(value: Any) -> bool:
    return _is_of_torch(type(value).__module__)


def _frozen(value: Any) -> Any:
    """As a part of a key: what it has inside, but for what is neither plain nor a list."""
    if is_plain(value):
        return type(value), repr(value) if isinstance(value, (float, complex)) else value
    if isinstance(value, dict):
        return dict, tuple([(_frozen(k), _frozen(v)) for k, v in value.items()])
    if isinstance(value, (set, frozenset)):
        return type(value), frozenset(map(_frozen, value))
    if isinstance(value, (tuple, list)):
        return type(value), tuple(map(_frozen, value))
    return type(value)

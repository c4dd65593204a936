"""What a function's code reads besides its arguments, where that is plain: numbers, strings and
lists of them, in its closure, in globals, in its defaults, and in attributes of objects there.

A program has them as constants, so they are part of what it is for.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any

import torch
from torch import Tensor

from ..graphs.recorded_numbers import Unrecorded

_PLAIN = (NoneType, bool, int, float, complex, str, bytes, torch.dtype, torch.device,
          torch.memory_format, torch.layout, torch.Size)  # fmt: skip
_LISTS = (tuple, list, dict, set, frozenset)
_DEEPEST = 4  # attributes of attributes
_NOTHING = object()


def is_plain(value: Any) -> bool:
    """Whether a value says by `==` all that code can find out about it."""
    return isinstance(value, _PLAIN)


class OutsideValues:
    """Of one function, and of what it calls that is written in Python and not PyTorch's."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self._looks: list[tuple[str, Callable[[], Any]]] | None = None
        self._seen: set[int] = set()
        self._kept: list[Any] = []  # what is in `_seen`
        self._names: set[str] = set()
        self._refusal: Unrecorded | None = None

    def read(self) -> Iterator[Any]:
        """As parts of a key. Raises Unrecorded for an attribute that is computed."""
        if self._refusal is not None:
            raise self._refusal
        if self._looks is None:
            self._looks = self._find()
        for name, look in self._looks:
            try:
                value = look()
            except Exception:  # it is gone, or not there yet
                value = _NOTHING
            yield name, _frozen(value)

    def _find(self) -> list[tuple[str, Callable[[], Any]]]:
        try:
            names, found = -1, {}
            while len(self._names) > names:  # all that is read of one object may be of another, too
                names = len(self._names)
                self._seen.clear()
                found = dict(self._found())
        except Unrecorded as error:
            self._refusal = error
            raise
        return list(found.items())

    def _found(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        roots = list(self._roots("", self._fn))
        for name, look in roots:
            yield from self._below(name, look, 0)

    def _roots(self, name: str, fn: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
        """What a function's names stand for, and those of the functions that it calls."""
        if isinstance(fn, functools.partial):
            yield f"{name}.args", lambda given=(fn.args, fn.keywords): given
            fn = fn.func
        if isinstance(fn, MethodType):
            yield f"{name}.self", lambda own=fn.__self__: own
            fn = fn.__func__
        fn = inspect.unwrap(fn) if isinstance(fn, FunctionType) else fn
        if not isinstance(fn, FunctionType):
            call = inspect.getattr_static(type(fn), "__call__", None)
            if isinstance(call, FunctionType):  # an object that is called
                yield f"{name}.self", lambda: fn
                yield from self._roots(f"{name}()", call)
            return
        if not self._is_new(fn) or str(fn.__globals__.get("__name__", "")).startswith("torch._"):
            return
        defaults = (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
        yield f"{name}.defaults", lambda: defaults
        cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
        for code in _codes(fn.__code__):
            self._names.update(code.co_names)
        for cell_name, cell in cells.items():
            yield from self._named(f"{name}.{cell_name}", lambda c=cell: c.cell_contents)
        for code in _codes(fn.__code__):
            for global_name in code.co_names:
                if global_name in fn.__globals__:
                    names = fn.__globals__
                    look = functools.partial(names.__getitem__, global_name)
                    yield from self._named(f"{name}.{global_name}", look)

    def _named(self, name: str, look: Callable[[], Any]) -> Iterator[tuple[str, Any]]:
        try:
            value = look()
        except Exception:  # an empty cell
            return
        if isinstance(value, (FunctionType, MethodType, functools.partial)):
            yield from self._roots(name, value)
        else:
            yield name, look

    def _below(self, name: str, look: Callable[[], Any], depth: int) -> Iterator[tuple[str, Any]]:
        """A value, or what code may read of an object."""
        try:
            value = look()
        except Exception:
            return
        if is_plain(value) or isinstance(value, _LISTS):
            yield name, look
            return
        if isinstance(value, (Tensor, ModuleType, type, torch.Generator)) or depth >= _DEEPEST:
            return
        if not self._is_new(value):
            return
        for attribute in sorted(self._names):
            static = inspect.getattr_static(value, attribute, _NOTHING)
            if static is _NOTHING:
                continue
            if isinstance(static, property) and not _is_torchs(value):
                what = f"reads {type(value).__name__}.{attribute}, which is computed"
                raise Unrecorded("its code", what, "it runs as it is")
            if isinstance(static, FunctionType):
                if not _is_torchs(value):
                    for root, of_root in self._roots(f"{name}.{attribute}", static):
                        yield from self._below(root, of_root, depth + 1)
                continue
            # By the whole way: each object on it may be another one later.
            inner = functools.partial(lambda of, at: getattr(of(), at), look, attribute)
            yield from self._below(f"{name}.{attribute}", inner, depth + 1)

    def _is_new(self, value: Any) -> bool:
        if id(value) in self._seen:
            return False
        self._seen.add(id(value))
        self._kept.append(value)
        return True


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _is_torchs(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "torch"


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

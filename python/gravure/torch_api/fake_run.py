"""Lets a function run on fake tensors and leaves nothing of that behind.

Private: `FakeTensorMode` has operators work on shapes; without it `explain` would run the model.
`_unsafe_set_version_counter` puts back what writes have counted; without it a backward that waits
would find its saved values changed. `pgo` holds the shapes that Dynamo saw, `convert_frame` the
code that it compiled, `eval_frame` what it made of it, and `DeletedGuardManagerWrapper` ends one of
these; without them the first call after `explain` compiles other sizes than it would have.
`_parameters`, `_buffers`, `_modules` are a module's members, `pytree` finds tensors in arguments.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from .private_names import (
    DeletedGuardManagerWrapper,
    FakeTensorMode,
    _unsafe_set_version_counter,
    convert_frame,
    eval_frame,
    pgo,
    pytree,
)
from .random_states import random_states_kept

_DICTS = ("_parameters", "_buffers", "_modules")


@contextlib.contextmanager
def faked(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """Inside, operators work on shapes alone: no kernel runs, nothing is drawn or written.

    What `fn` assigns to modules at hand (those that it is, closes over or is given, and the global
    ones that it names) is put back, as are gradients and version counters.
    """
    modules = {id(m): m for root in _roots(fn, args, kwargs) for m in root.modules()}
    kept = [_Kept(module) for module in modules.values()]
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    for module in modules.values():
        tensors += [t for d in _DICTS[:2] for t in module.__dict__[d].values() if t is not None]
    states = [
        (t, t._version, t.grad if t.is_leaf else None) for t in tensors if not _keeps_no_version(t)
    ]
    try:
        with random_states_kept(), FakeTensorMode(allow_non_fake_inputs=True):
            yield
    finally:
        for one in kept:
            one.put_back()
        for tensor, version, grad in states:
            _unsafe_set_version_counter((tensor,), (version,))
            if tensor.is_leaf and tensor.grad is not grad:
                tensor.grad = grad


def _keeps_no_version(tensor: Tensor) -> bool:
    """Whether it keeps no version counter."""
    return tensor.is_inference() or tensor.layout is not torch.strided or tensor.is_nested


class _Kept:
    """A module's attributes as they were."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._attributes = dict(module.__dict__)
        self._members = {name: dict(module.__dict__[name]) for name in _DICTS}

    def put_back(self) -> None:
        _restore(self._module.__dict__, self._attributes)
        for name, members in self._members.items():
            _restore(self._module.__dict__[name], members)


def _restore(found: dict[str, Any], former: dict[str, Any]) -> None:
    """Dynamo guards on these dictionaries, so they are left alone where nothing changed."""
    same = list(found) == list(former) and all(found[name] is former[name] for name in former)
    if not same:
        found.clear()
        found.update(former)


def _roots(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[nn.Module]:
    """The modules at hand, each with its submodules in it."""
    seen: set[int] = set()
    pending = [fn, *pytree.tree_leaves((args, kwargs))]
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, nn.Module):
            yield value
        elif isinstance(value, functools.partial):
            pending += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, types.MethodType):
            pending += [value.__self__, value.__func__]
        elif isinstance(value, types.FunctionType):
            cells = value.__closure__ or ()
            filled = [cell.cell_contents for cell in cells if _is_filled(cell)]
            pending += pytree.tree_leaves(filled)
            names = [n for n in value.__code__.co_names if n in value.__globals__]
            found = [value.__globals__[name] for name in names]
            pending += [v for v in found if isinstance(v, (nn.Module, types.FunctionType))]


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


@contextlib.contextmanager
def forgotten(backend: Any) -> Iterator[None]:
    """What Dynamo compiles with `backend` inside is dropped, and the shapes it saw forgotten."""
    shapes = pgo._CODE_STATE
    copied: Any = defaultdict(pgo.CodeState) if shapes is None else copy.deepcopy(shapes)
    try:
        with mock.patch.object(pgo, "_CODE_STATE", copied):
            yield
    finally:
        for reference in list(convert_frame.input_codes.seen):
            code = reference()
            if code is not None:
                _drop(code, backend)
        gc.collect()


def _drop(code: types.CodeType, backend: Any) -> None:
    entries = eval_frame._debug_get_cache_entry_list(code)
    own = [e for e in entries if getattr(e.backend, "compiler_fn", e.backend) is backend]
    if own and len(own) == len(entries):
        eval_frame.reset_code(code)
        return
    for entry in own:  # the others, which somebody else compiled, stay
        gone = DeletedGuardManagerWrapper("it was compiled to be explained")
        entry.guard_manager.extra_state.invalidate(entry, gone)

"""The state of PyTorch's dispatcher: which modes, keys and autocast are in force."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from .private_names import (
    MissingName,
    TorchDispatchMode,
    _AutoDispatchBelowAutograd,
    _disable_current_modes,
    _DisableAutocast,
    _dispatch_tls_local_exclude_set,
    _dispatch_tls_local_include_set,
    _ForceDispatchKeyGuard,
    _is_any_autocast_enabled,
    enter_autocast,
    exit_autocast,
    is_traceable_wrapper_subclass,
    set_grad_enabled,
)

__all__ = [
    "TorchDispatchMode",
    "below_autograd",
    "enter_autocast",
    "exit_autocast",
    "in_autocast",
    "is_traceable_wrapper_subclass",
    "not_traced",
    "plainly",
    "set_grad_enabled",
    "without_autocast",
    "without_modes",
]

# TorchDispatchMode: sees each call of an operator. Without it no update is recorded.
# enter_autocast, exit_autocast, set_grad_enabled: what Dynamo's graphs change these states with.
# Without them a weight is cast at each use, and its gradients are added in float32.
# is_traceable_wrapper_subclass: tells a tensor that holds others (DTensor). Without it a step reads
# such a tensor as if it were a plain one.

Function = TypeVar("Function", bound=Callable[..., Any])


def _state() -> tuple[Any, ...]:
    """The dispatch keys that are on, and those that are off. Without them, or the guard, compiled
    code is not run."""
    return _dispatch_tls_local_include_set(), _dispatch_tls_local_exclude_set()


try:
    _AT_IMPORT = _state()  # of whoever imports this: nothing special is on
except MissingName:  # who needs it is told
    _AT_IMPORT = ()


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Dispatch as where nothing is special, without gradients.

    A program runs below autograd, where vmap, for one, takes other ways. Without it compiled code
    fails under a mode or a transform that the caller has on.
    """
    with _ForceDispatchKeyGuard(*(_AT_IMPORT or _state())), torch.no_grad():
        yield


@contextlib.contextmanager
def without_modes() -> Iterator[None]:
    """No dispatch mode is on. Without it constants are computed as stand-ins without values."""
    with _disable_current_modes():
        yield


@contextlib.contextmanager
def below_autograd() -> Iterator[None]:
    """Operators dispatch as behind autograd, in grad mode.

    As AOTAutograd runs its graphs. Without it oneDNN keeps no workspace of an LSTM for its
    backward, which then fails.
    """
    with _AutoDispatchBelowAutograd(), torch.enable_grad():
        yield


def in_autocast() -> bool:
    """Whether autocast is on, for any device.

    Without it backwards are traced as if they were called outside of autocast: other bits for those
    who call them inside.
    """
    return _is_any_autocast_enabled()


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """Autocast is off. Without it the casts that a graph already holds are made twice."""
    with _DisableAutocast():
        yield


def not_traced(function: Function) -> Function:
    """`function`, which Dynamo leaves alone.

    Without it a backward that autograd calls where Dynamo watches is compiled once more, and so is
    what a compiled function calls of ours.
    """
    return torch.compiler.disable(function)

"""Tensors without values, which graphs are traced with, and symbolic numbers in their sizes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from .private_names import (
    DataDependentOutputException,
    FakeTensor,
    FakeTensorMode,
    detect_fake_mode,
    is_sym_node,
    unset_fake_temporarily,
)

__all__ = [
    "DataDependentOutputException",
    "FakeTensor",
    "FakeTensorMode",
    "constant_of",
    "expression_of",
    "fixed_number",
    "has_open_sizes",
    "is_nested_number",
    "is_sym_node",
    "mode_of",
    "mode_of_any",
    "storage_key",
    "unset_fake_temporarily",
]

# DataDependentOutputException: a stand-in was asked for a value. Without it the error has no
# remedy.
# FakeTensor: the type of a stand-in. Without it a call of Dynamo's own, which looks at a graph, is
# taken for one of the user's.
# FakeTensorMode: makes stand-ins. Without it `explain` and an optimizer's step would run.
# unset_fake_temporarily: off, for what is real while others trace. Without it programs made
# under Dynamo would be given stand-ins.
# is_sym_node: whether a node of a graph is a symbolic number: what AOTAutograd moves among saved
# values. Without it there are no programs for them.


def mode_of_any(values: Iterable[Any]) -> FakeTensorMode:
    """That of these values, or a new one. Without it stand-ins of two modes meet, an error."""
    return detect_fake_mode(list(values)) or FakeTensorMode()


def mode_of(value: Any) -> AbstractContextManager[Any]:
    """That of a stand-in, to be entered; of anything else, nothing."""
    return getattr(value, "fake_mode", contextlib.nullcontext())


def constant_of(value: Any) -> Tensor | None:
    """The values of a stand-in of the CPU's that are known while tracing.

    Without it Inductor's code copies `y[0] = 0`'s number to the GPU: not captured.
    """
    return value.constant if isinstance(value, FakeTensor) else None


def has_open_sizes(tensor: Tensor) -> bool:
    """Whether a size or stride is a symbol. Without it types cannot be looked up by sizes."""
    return tensor._has_symbolic_sizes_strides


def storage_key(tensor: Tensor) -> int:
    """Of the memory of a tensor, real or not: the same for all that share it. What has no such
    memory, as a sparse tensor, has a number of its own.

    Without it a stand-in, which has no address, cannot be told to share memory.
    """
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return id(tensor)


def fixed_number(value: torch.SymInt) -> int | None:
    """What a symbolic number has turned out to be; None where it is open."""
    return value.node.maybe_as_int()


def expression_of(value: Any) -> Any:
    """A symbolic number as sympy's expression. Without it open sizes get no programs."""
    return value.node.expr


def is_nested_number(value: Any) -> bool:
    """Whether it is the size of a nested tensor, which programs do not know."""
    return isinstance(value, torch.SymInt) and value.node.is_nested_int()


def has_no_memory(value: Any) -> bool:
    """Whether these are zeros that autograd makes without memory. Without it they would be saved
    for a backward as if they had some."""
    return isinstance(value, torch.Tensor) and value._is_zerotensor()

"""Calls of the library without torch.classes, which takes longer for one than a replay does.

Where the process hides Python's own functions, or PyTorch's for Python, they go through
torch.classes as all others.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from itertools import chain
from operator import is_
from typing import Any

import torch

from .load import program_class

# Of plain tensors, told by their type: a subclass may have operators of its own.
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


def direct(
    program: Any, method: str, entry: str | None = None, *, only_tensors: bool = False
) -> Callable[..., Any]:
    """`program.method(entry, ...)` as a function of what follows; without `entry` of all.

    `method`: one that direct_calls.h, of python/csrc, knows. `only_tensors`: the entry takes and
    returns nothing else, so the method is taken that has lists of tensors, which cost less.
    """
    method = f"{method}_tensors" if only_tensors else method
    slow = getattr(program, method)
    if entry is not None:
        slow = functools.partial(slow, entry)
    report = program.report_parked
    types = [id(kind) for kind in PLAIN_TENSORS]
    made = program.direct_call(method, entry or "", id(slow), id(report), types)
    return _taken(made) if made else slow


def same_objects() -> Callable[[Any, list[Any]], bool]:
    """Whether a list has the members that were noted, or a dictionary the keys and values, one
    behind the other: the same objects, which nothing is asked."""
    made = program_class().same_objects()
    return _taken(made) if made else _same


def distinct_values() -> Callable[[list[Any]], list[float] | None]:
    """The values that tensors of one number on the CPU have, in order, each once by its bits. None
    where a tensor is of another kind, or they have too many values."""
    made = program_class().distinct_values()
    return _taken(made) if made else _no_values


def memory_watch(count: int, written: list[int]) -> Callable[[tuple[Any, ...]], bool]:
    """Whether none of so many tensors shares memory with one at `written`, for sure: only what lies
    elsewhere than in the last call is compared."""
    made = program_class().memory_watch(count, written)
    return _taken(made) if made else _never


def _never(tensors: tuple[Any, ...]) -> bool:
    return False


def _no_values(tensors: list[Any]) -> None:
    return None


def items_of(dictionary: dict[Any, Any]) -> list[Any]:
    """Its keys and values, one behind the other."""
    return [*chain.from_iterable(dictionary.items())]


def _taken(address: int) -> Any:
    """The object that was made there for us to hold."""
    made = ctypes.cast(address, ctypes.py_object).value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(made))
    return made


def _same(container: Any, noted: list[Any]) -> bool:
    if type(container) not in (list, dict):
        return False
    items = container if type(container) is list else items_of(container)
    return len(items) == len(noted) and all(map(is_, items, noted))

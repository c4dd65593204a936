"""What an optimizer's groups say: numbers, which each step is given, and what a program is for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..torch_api.dispatch import in_autocast


def read_groups(
    optimizer: Optimizer,
    key: list[Any],
    numbers: list[float],
    tensors: list[Tensor],
    counted: frozenset[str] = frozenset(),
) -> None:
    """Adds to each of the lists. Raises TypeError for a setting that no program knows.

    `counted`: names of ints that are numbers, too.
    """
    for group in optimizer.param_groups:
        for name, value in group.items():
            if name in counted and type(value) is int:
                numbers.append(value)
                key += (name, int)
            elif name != "params":
                key.append(name)
                _read(value, key, numbers, tensors)


def read_state(
    optimizer: Optimizer,
    parameters: Sequence[Tensor],
    key: list[Any],
    numbers: list[float],
    counted: frozenset[str],
) -> None:
    """Adds what Python has in the state of these parameters besides tensors."""
    for parameter in parameters:
        for name, value in optimizer.state.get(parameter, {}).items():
            key.append(name)
            if name in counted and type(value) in (int, float):
                numbers.append(value)
                key.append(type(value))
            elif not isinstance(value, Tensor):
                _read_plain(value, key)


def surroundings() -> tuple[Any, ...]:
    """What decides, besides its arguments, which operators code runs: autocast, and where and as
    what tensors are made of Python's values."""
    kinds = ("cpu", "cuda") if in_autocast() else ()
    casts = [torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) for kind in kinds]
    return torch.get_default_dtype(), torch.get_default_device(), *casts


def counted_in(
    optimizer: Optimizer, parameters: Sequence[Tensor], counted: frozenset[str]
) -> list[tuple[dict[Any, Any], str]]:
    """Where the numbers of these names are."""
    holders = [
        *optimizer.param_groups,
        *[optimizer.state[p] for p in parameters if p in optimizer.state],
    ]
    return [(h, n) for h in holders for n, v in h.items() if n in counted and is_number(v)]


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and type(value) is not bool


def _read_plain(value: Any, key: list[Any]) -> None:
    if value is not None and not isinstance(value, (bool, int, float, str, torch.dtype)):
        raise TypeError(f"its state has a {type(value).__name__}")
    key += (type(value), repr(value))


def _read(value: Any, key: list[Any], numbers: list[float], tensors: list[Tensor]) -> None:
    if isinstance(value, float):
        numbers.append(float(value))
        key.append(float)
    elif isinstance(value, (tuple, list)):
        key.append((type(value), len(value)))
        for member in value:
            _read(member, key, numbers, tensors)
    elif isinstance(value, Tensor):
        tensors.append(value)
        key += (Tensor, value.dtype, value.device, value.shape)
    elif value is None or isinstance(value, (bool, int, str, torch.dtype)):
        key += (type(value), value)
    else:
        raise TypeError(f"a setting is a {type(value).__name__}")


def are_same(tensors: list[Tensor], others: list[Tensor]) -> bool:
    """Whether these are one by one the same objects."""
    return len(tensors) == len(others) and all(a is b for a, b in zip(tensors, others, strict=True))

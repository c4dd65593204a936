"""What an optimizer's groups say: numbers, which each step is given, and what a program is for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


def read_groups(
    optimizer: Optimizer, key: list[Any], numbers: list[float], tensors: list[Tensor]
) -> None:
    """Adds to each of the lists. Raises TypeError for a setting that no program knows."""
    for group in optimizer.param_groups:
        for name, value in group.items():
            if name != "params":
                key.append(name)
                _read(value, key, numbers, tensors)


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

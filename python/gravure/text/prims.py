"""PyTorch's `prims::` operators as the `aten::` calls that they stand for.

Only Python registers them, so a program that holds one would run nowhere else. Those that return
views never reach a graph: AOTAutograd refuses them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..torch_api.operators import OpOverload

# What a call becomes: the operator, its arguments and its keyword arguments.
Lowered = tuple[OpOverload, tuple[Any, ...], dict[str, Any]]

_aten = torch.ops.aten
_prims = torch.ops.prims


def _convert(x: Any, dtype: torch.dtype) -> Lowered:
    return _aten._to_copy.default, (x,), {"dtype": dtype}


def _device_put(x: Any, device: torch.device, non_blocking: bool = False) -> Lowered:
    return _aten._to_copy.default, (x,), {"device": device, "non_blocking": non_blocking}


def _clone(x: Any, memory_format: torch.memory_format | None = None) -> Lowered:
    return _aten.clone.default, (x,), {"memory_format": memory_format}


def _rev(x: Any, dims: Any) -> Lowered:
    return _aten.flip.default, (x, dims), {}


def _where(condition: Any, x: Any, y: Any) -> Lowered:
    return _aten.where.self, (condition, x, y), {}


_LOWERINGS: dict[Any, Callable[..., Lowered]] = {
    _prims.convert_element_type.default: _convert,
    _prims.device_put.default: _device_put,
    _prims.clone.default: _clone,
    _prims.rev.default: _rev,
    _prims.where.default: _where,
}


def is_prim(overload: OpOverload) -> bool:
    return overload.namespace == "prims"


def lowered(overload: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lowered | None:
    """The aten call that gives the same bits; None if there is none."""
    lowering = _LOWERINGS.get(overload)
    return None if lowering is None else lowering(*args, **kwargs)

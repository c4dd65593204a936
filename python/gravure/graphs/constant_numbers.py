"""`y[0] = 0` and its like: a number that AOTAutograd's graph holds in a CPU tensor, as a number.

Eager's operators read such a tensor on the host. Inductor's code for them would copy it to the GPU,
which cannot be captured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..torch_api.fake_tensors import constant_of

aten = torch.ops.aten

Decompositions = dict[Any, Callable[..., Any]]


def with_numbers(others: Decompositions) -> Decompositions:
    """`others`, and before them those that write a constant without dimensions into a tensor."""
    ours = {op: _either(ours, others.get(op)) for op, ours in _WRITES.items()}
    return {**others, **ours}


def _either(ours: Callable[..., Any], other: Callable[..., Any] | None) -> Callable[..., Any]:
    def decompose(*args: Any, **kwargs: Any) -> Any:
        result = ours(*args, **kwargs)
        return other(*args, **kwargs) if result is NotImplemented and other else result

    return decompose


def _number(value: Any) -> Any:
    """The number, or None for what is known only at run time."""
    constant = constant_of(value)
    if constant is None or constant.dim() > 0 or constant.device.type != "cpu":
        return None
    return constant.item()


def _fill(x: Tensor, value: Tensor, non_blocking: bool = False) -> Any:
    number = _number(value)
    return NotImplemented if number is None else aten.fill.Scalar(x, number)


def _masked_fill(x: Tensor, mask: Tensor, value: Tensor) -> Any:
    number = _number(value)
    return NotImplemented if number is None else aten.masked_fill.Scalar(x, mask, number)


def _index_put(
    x: Tensor,
    indices: list[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
) -> Any:
    """`x[mask] = number`, of which eager makes masked_fill, too (canDispatchToMaskedFill)."""
    number, (mask, *rest) = _number(values), indices
    if number is None or accumulate or rest or mask is None or mask.dtype is not torch.bool:
        return NotImplemented
    if mask.device != x.device:
        return NotImplemented
    wide = mask.reshape(*mask.shape, *[1] * (x.dim() - mask.dim()))
    return aten.masked_fill.Scalar(x, wide, number)


_WRITES: Decompositions = {
    aten.fill.Tensor: _fill,
    aten.copy.default: _fill,
    aten.masked_fill.Tensor: _masked_fill,
    aten.index_put.default: _index_put,
}

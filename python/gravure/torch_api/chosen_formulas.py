"""A gradient whose formula eager chooses by the data ends the graph.

That of `torch.prod` is the product divided by each factor, and where a factor is zero the product
of all others. Who traces has no data, and takes the second way always: its last bits are others.
(Up to 2.11 `torch.cumprod` is one, too.) So the graph ends in front of it, where what it multiplies
requires a gradient, and Python calls it in each call, as in eager.

Private: Dynamo's `TensorVariable` is a tensor that it traces, `TorchInGraphFunctionVariable` what
it puts into its graph; `unimplemented` breaks the graph. Without them gradients have other bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.masked
from torch.torch_version import TorchVersion

from .private_names import (
    TensorVariable,
    TorchInGraphFunctionVariable,
    is_there,
    unimplemented,
)

WHY = "the gradient of a product has a formula that eager chooses by the data"

_NEEDED = ("TensorVariable", "TorchInGraphFunctionVariable", "unimplemented")
_NAMES = ("prod",) if TorchVersion(torch.__version__) >= (2, 12) else ("prod", "cumprod")
_OUTSIDE = "compute it outside of the compiled function"
_CUMPROD = "take x.cumprod(dim).select(dim, -1), whose gradient has one formula"
REMEDY = _OUTSIDE if "cumprod" in _NAMES else f"{_CUMPROD}, or {_OUTSIDE}"


def _functions() -> Iterator[Any]:
    for name in _NAMES:
        for owner in (torch, torch.Tensor, torch.masked):
            yield getattr(owner, name)
        operator = getattr(torch.ops.aten, name)
        yield operator
        yield from (getattr(operator, overload) for overload in operator.overloads())


_FUNCTIONS = tuple(_functions())


def end_at_chosen_formulas(has_eagers_bits: Callable[[Any], bool]) -> None:
    """Has Dynamo do so where `has_eagers_bits` says that a backend promises them."""
    if all(map(is_there, _NEEDED)):
        TensorVariable.call_method = _method(TensorVariable.call_method, has_eagers_bits)
        kind = TorchInGraphFunctionVariable
        kind.call_function = _function(kind.call_function, has_eagers_bits)


def _method(call: Callable[..., Any], has_eagers_bits: Callable[[Any], bool]) -> Callable[..., Any]:
    @functools.wraps(call)
    def call_method(self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if name in _NAMES and has_eagers_bits(tx.output.compiler_fn):
            _end_where_trained([self])
        return call(self, tx, name, *args, **kwargs)

    return call_method


def _function(
    call: Callable[..., Any], has_eagers_bits: Callable[[Any], bool]
) -> Callable[..., Any]:
    @functools.wraps(call)
    def call_function(self: Any, tx: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        known = any(self.value is function for function in _FUNCTIONS)
        if known and has_eagers_bits(tx.output.compiler_fn):
            _end_where_trained([*args, *kwargs.values()])
        return call(self, tx, args, kwargs)

    return call_function


def _end_where_trained(values: Sequence[Any]) -> None:
    if torch.is_grad_enabled() and any(map(_requires_gradient, values)):
        unimplemented(gb_type=WHY, context="torch.prod", explanation="torch.prod", hints=[REMEDY])


def _requires_gradient(value: Any) -> bool:
    if not isinstance(value, TensorVariable):
        return False
    example = value.as_proxy().node.meta.get("example_value")
    return isinstance(example, torch.Tensor) and example.requires_grad

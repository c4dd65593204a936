"""What Dynamo traces otherwise than eager runs it is traced as eager runs it, for bits' sake.

- `q, k, v = qkv` is one `unbind`. Dynamo takes the rows one by one; the gradient of each is then
  zeros, a copy and an addition, where that of `unbind` is one `stack`, and adding zeros loses the
  sign of a zero.
- `a.add_(b, alpha=0.1)` is one operator, as are `addcmul_`, `addcdiv` and `_foreach_lerp_` with a
  number. Dynamo takes them apart, lest a number that is a tensor is read on the host; products are
  rounded then before they are added. A number that is a tensor is left to it.

Dynamo is changed for what Gravure compiles alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.variables.tensor import TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

_MARK = "_gravure_traces_as_eager"


def traces_as_eager(backend: Any) -> Any:
    """Marks a backend of Dynamo's: its graphs hold what eager runs."""
    _change_dynamo()
    setattr(backend, _MARK, True)
    return backend


def _is_marked(backend: Any) -> bool:
    """Looks through what Dynamo and torch.compile wrap a backend in."""
    while backend is not None:
        if getattr(backend, _MARK, False):
            return True
        backend = getattr(backend, "_torchdynamo_orig_backend", None) or getattr(
            backend, "compiler_fn", None
        )
    return False


@functools.cache
def _change_dynamo() -> None:
    TensorVariable.unpack_var_sequence = _unbinding(TensorVariable.unpack_var_sequence)
    for name in ("method_add_", "method_addcmul_", "method_addcdiv_"):
        setattr(TensorVariable, name, _whole(getattr(TensorVariable, name)))
    handlers = TorchInGraphFunctionVariable._get_handlers()
    for function in (torch.addcdiv, torch._foreach_lerp_):
        handlers[function] = _whole(handlers[function])


def _unbinding(by_rows: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    @functools.wraps(by_rows)
    def unpack(self: Any, tx: Any, idxes: Sequence[int] | None = None) -> list[Any]:
        # Subclasses of the variable stand for other things than a plain tensor.
        plain = type(self) is TensorVariable and self.valid_size() and len(self.size) > 0
        if not plain or not _is_marked(tx.output.compiler_fn):
            return by_rows(self, tx, idxes)
        if idxes is not None and len(idxes) != self.size[0]:
            return by_rows(self, tx, idxes)  # which says what is wrong
        return self.call_method(tx, "unbind", [], {}).unpack_var_sequence(tx)

    return unpack


def _whole(apart: Callable[..., Any]) -> Callable[..., Any]:
    """None, for the operator itself, where what it multiplies by is a number; else as `apart`."""

    @functools.wraps(apart)
    def trace(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        named = [kwargs[name] for name in ("alpha", "value") if name in kwargs]
        factors = named or args[-1:]  # of _foreach_lerp_ the last one
        numbers = bool(factors) and all(factor.is_python_constant() for factor in factors)
        if numbers and _is_marked(tx.output.compiler_fn):
            return None
        return apart(self, tx, *args, **kwargs)

    return trace

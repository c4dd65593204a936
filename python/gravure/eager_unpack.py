"""Unpacking a tensor, as in `q, k, v = qkv`, is traced as eager runs it: by one `unbind`.

Dynamo takes the rows one by one instead. The gradient of each is then zeros, a copy and an
addition, where that of `unbind` is one `stack`; and adding zeros loses the sign of a zero, so the
bits are not eager's. Dynamo is changed for what Gravure compiles alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch._dynamo.variables.tensor import TensorVariable

_MARK = "_gravure_unpacks_as_eager"


def unpacks_as_eager(backend: Any) -> Any:
    """Marks a backend of Dynamo's: for its graphs, unpacking a tensor is one `unbind`."""
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
    by_rows: Callable[..., list[Any]] = TensorVariable.unpack_var_sequence

    @functools.wraps(by_rows)
    def unpack(self: Any, tx: Any, idxes: Sequence[int] | None = None) -> list[Any]:
        # Subclasses of the variable stand for other things than a plain tensor.
        plain = type(self) is TensorVariable and self.valid_size() and len(self.size) > 0
        if not plain or not _is_marked(tx.output.compiler_fn):
            return by_rows(self, tx, idxes)
        if idxes is not None and len(idxes) != self.size[0]:
            return by_rows(self, tx, idxes)  # which says what is wrong
        return self.call_method(tx, "unbind", [], {}).unpack_var_sequence(tx)

    TensorVariable.unpack_var_sequence = unpack

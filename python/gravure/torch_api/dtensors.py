"""DTensors: what each holds on this rank, and operators on stand-ins of them.

Private: `_local_tensor` and `_spec` are a DTensor's own tensor and how it lies on its mesh, which
also is what its constructor takes; an AsyncCollectiveTensor is one that a collective is still
writing; ShardingPropagator asks stand-ins of its own what an operator returns. Without them an
optimizer of DTensors runs its own step.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from .dispatch import without_modes
from .private_names import AsyncCollectiveTensor, DTensor, ShardingPropagator

_here = threading.local()


def spec_of(tensor: Any) -> Any:
    """How a DTensor lies on its mesh; None for any other tensor."""
    return tensor._spec if type(tensor) is DTensor else None


def local_of(tensor: Any) -> Any:
    """What a DTensor holds on this rank; any other tensor itself."""
    if type(tensor) is not DTensor:
        return tensor
    local = tensor._local_tensor
    return local.wait() if isinstance(local, AsyncCollectiveTensor) else local


def is_dtensor(tensor: Any) -> bool:
    return type(tensor) is DTensor


def locals_of(tensors: Sequence[Any]) -> list[Any]:
    """`local_of` each."""
    return [local_of(tensor) for tensor in tensors]


def layout_of(tensor: Any) -> Any:
    """Shape, strides, whether it is read conjugated or negated, and for a DTensor how it lies on
    its mesh: what a program is for.

    Raises RuntimeError for what has no strides.
    """
    local = local_of(tensor)
    return spec_of(tensor), local.shape, local.stride(), local.is_conj(), local.is_neg()


def lying_as(spec: Any, local: Tensor) -> Tensor:
    """A DTensor of this local tensor; without a spec the tensor itself."""
    return local if spec is None else DTensor(local, spec, requires_grad=False)


@contextlib.contextmanager
def specs_found_aside() -> Iterator[None]:
    """Inside, no dispatch mode of this thread sees the operators that DTensor runs on stand-ins of
    its own, to learn what an operator returns. Without it they are part of what is recorded.
    """
    _patch()
    before = getattr(_here, "aside", False)
    _here.aside = True
    try:
        yield
    finally:
        _here.aside = before


@functools.cache
def _patch() -> None:
    own = ShardingPropagator._propagate_tensor_meta_non_cached

    @functools.wraps(own)
    def propagate(self: Any, schema: Any) -> Any:
        if not getattr(_here, "aside", False):
            return own(self, schema)
        with without_modes():
            return own(self, schema)

    ShardingPropagator._propagate_tensor_meta_non_cached = propagate

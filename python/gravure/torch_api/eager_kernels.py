"""While tracing, composite operators are taken apart by the C++ code that eager itself runs.

PyTorch replaces some of them by Python versions when it traces. Those round, add or draw otherwise
than eager does: dropout on the CPU differs in the last bit for one probability in seven, LSTM and
GRU skip oneDNN and lose the dropout between their layers, upsampling sums its gradients in another
order, batch norm on a GPU is PyTorch's own instead of cuDNN's.

A few are functions of ours instead (`_OURS`): what eager's C++ draws, or adds in place to parts of
a matrix, has other bits as functions; and cuDNN's recurrent modules ask for addresses.

What a kernel takes, its stand-in without values takes, too: `grouped_mm` of floats.

Private: `_decomp` registers the Python versions, which `py_kernels` and `_dispatch_cache` of an
operator (`OpOverload`) hold by `DispatchKey`; without them bits differ as said. Of stand-ins,
`op_implementations_dict` is the table, `_create_grouped_mm_output_tensor` and
`_get_cudnn_batch_norm_reserve_space_size` the sizes, and `guard_or_false` asks for a size without a
guard on it; without them floats in `grouped_mm` are refused, and cuDNN's backward reads no space.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..library.namespace import LIBRARY
from . import cudnn_recurrent, gru_kernels
from .compile_lock import compile_lock
from .eager_layouts import eager_layouts
from .private_names import (
    DispatchKey,
    OpOverload,
    _create_grouped_mm_output_tensor,
    _decomp,  # noqa: F401
    _get_cudnn_batch_norm_reserve_space_size,
    guard_or_false,
    op_implementations_dict,
)

_NAMES = (
    "cudnn_batch_norm",
    "lstm",
    "gru",
    "rnn_tanh",
    "rnn_relu",
    "hardshrink",
    "softshrink",
    "multi_margin_loss",
    "multilabel_margin_loss_forward",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
)

# `empty_like(like).bernoulli_(p)` as one node of a graph. The functional form that PyTorch has,
# `bernoulli.p`, draws in another order where `like` is not contiguous.
LIBRARY.define(
    "bernoulli_like(Tensor like, float p) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,)
)


@torch.library.impl(LIBRARY, "bernoulli_like", "CompositeExplicitAutograd")
def _bernoulli_like(like: Tensor, p: float) -> Tensor:
    return torch.empty_like(like).bernoulli_(p)


@torch.library.register_fake("gravure::bernoulli_like", lib=LIBRARY)
def _(like: Tensor, p: float) -> Tensor:
    return torch.empty_like(like)


BERNOULLI_LIKE = torch.ops.gravure.bernoulli_like.default


def _noise(x: Tensor, p: float) -> Tensor:
    return BERNOULLI_LIKE(x.detach(), 1 - p)


def _does_nothing(x: Tensor, p: float, train: bool | None) -> bool:
    """Whether dropout does nothing."""
    return p == 0 or not train or guard_or_false(x.numel() == 0)


def _dropout(x: Tensor, p: float, train: bool | None) -> Tensor:
    """ATen/native/Dropout.cpp, with the draw as one node."""
    if train and x.is_cuda and 0 < p < 1 and not guard_or_false(x.numel() == 0):
        return torch.native_dropout(x, p, train)[0]
    if _does_nothing(x, p, train):
        return x
    if p == 1:
        return x * torch.zeros((), dtype=x.dtype, device=x.device)
    return x * _noise(x, p).div(1 - p)


def _alpha_dropout(x: Tensor, p: float, train: bool | None) -> Tensor:
    if _does_nothing(x, p, train):
        return x
    if p == 1:
        return x * torch.zeros((), dtype=x.dtype, device=x.device)
    alpha = 1.7580993408473766
    noise = _noise(x, p)
    a = 1.0 / math.sqrt((alpha * alpha * p + 1) * (1 - p))
    b = noise.add(-1).mul(alpha * a).add(alpha * a * p)
    return x * noise.mul(a) + b


# Traced by functions of ours, where eager's C++ draws or writes in a way that a graph has not.
_OURS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.dropout.default: _dropout,
    torch.ops.aten.alpha_dropout.default: _alpha_dropout,
    **gru_kernels.KERNELS,
}


def _recurrent(op: OpOverload, elsewhere: Callable[..., Any]) -> Callable[..., Any]:
    """What cuDNN runs is one operator."""

    def run(x: Tensor, hidden: Any, weights: Sequence[Tensor], *rest: Any) -> Any:
        if cudnn_recurrent.takes(x, weights):
            return cudnn_recurrent.traced(op, x, hidden, weights, *rest)
        return elsewhere(x, hidden, weights, *rest)

    return run


for _op in cudnn_recurrent.MODES:
    _OURS[_op] = _recurrent(_op, _OURS.get(_op, functools.partial(gru_kernels.of_cpp, _op)))


_BATCH_NORM = torch.ops.aten.cudnn_batch_norm.default


def _fake_batch_norm(_mode: Any, _op: Any, x: Tensor, weight: Tensor, *rest: Any) -> Any:
    """Sizes of cuDNN's results. PyTorch's own fake has no bytes for the space that the backward
    reads."""
    training = rest[3]
    stats = x.shape[1] if training else 0
    space = _get_cudnn_batch_norm_reserve_space_size(x, training) if training else 0
    return (
        torch.empty_like(x),
        weight.new_empty(stats),
        weight.new_empty(stats),
        x.new_empty(space, dtype=torch.uint8),
    )


GROUPED_MM = torch.ops.aten._grouped_mm.default
_GROUPED_DTYPES = (torch.float32, torch.float16)


def fake_grouped_mm(
    mode: Any,
    _op: Any,
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """The stand-in for types that the kernel takes, and PyTorch's own fake refuses."""
    if a.dtype not in _GROUPED_DTYPES or b.dtype != a.dtype or bias is not None:
        return NotImplemented
    with mode:
        return _create_grouped_mm_output_tensor(a, b, offs, out_dtype)


_FAKES = {_BATCH_NORM: _fake_batch_norm, GROUPED_MM: fake_grouped_mm}


def _overloads() -> Iterator[OpOverload]:
    for name in _NAMES:
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            yield getattr(packet, overload)


@contextlib.contextmanager
def eager_kernels() -> Iterator[None]:
    """Within, the operators above are eager's own: for all threads, of which one traces."""
    with compile_lock, eager_layouts():
        yield from _exchanged()


def _exchanged() -> Iterator[None]:
    # PyTorch's Python versions are registered for these keys.
    keys = DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd
    before = []
    fakes_before = {op: op_implementations_dict.get(op) for op in _FAKES}
    try:
        for op in {*_overloads(), *_OURS}:
            before.append((op, dict(op.py_kernels)))
            for key in keys:
                op.py_kernels.pop(key, None)
                if op in _OURS:
                    op.py_kernels[key] = _OURS[op]
            op._dispatch_cache.clear()
        op_implementations_dict.update(_FAKES)
        yield
    finally:
        for op, fake in fakes_before.items():
            op_implementations_dict.pop(op, None)
            if fake is not None:
                op_implementations_dict[op] = fake
        for op, kernels in before:
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()

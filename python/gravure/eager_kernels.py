"""While tracing, composite operators are taken apart by the C++ code that eager itself runs.

PyTorch replaces some of them by Python versions when it traces. Those round, add or draw otherwise
than eager does: dropout on the CPU differs in the last bit for one probability in seven, LSTM and
GRU skip oneDNN and lose the dropout between their layers, upsampling sums its gradients in another
order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch._decomp  # noqa: F401  registers the Python versions

_NAMES = (
    "dropout",
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
_KEYS = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)


def _overloads() -> Iterator[torch._ops.OpOverload]:
    for name in _NAMES:
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            yield getattr(packet, overload)


@contextlib.contextmanager
def eager_kernels() -> Iterator[None]:
    """Within, the operators above are eager's own."""
    removed = []
    try:
        for op in _overloads():
            kernels = {key: op.py_kernels.pop(key) for key in _KEYS if key in op.py_kernels}
            op._dispatch_cache.clear()
            removed.append((op, kernels))
        yield
    finally:
        for op, kernels in removed:
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()

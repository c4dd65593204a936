"""While tracing, results lie in memory as eager's kernels lay them.

PyTorch asks Python versions of some operators how their results lie, and these lay them otherwise
than the kernels do: `softplus_backward` as its second operand lies, where the kernel has the first
one's layout. A traced view of such a result fails in the program, where eager's own code copies.

Private: `op_implementations_dict` is the table of stand-ins; a Python version comes before it, but
for an operator in `meta_table`. `decomposition_table` has the Python versions, which know sizes and
dtypes. `compute_elementwise_output_strides` is the rule of TensorIterator, by which kernels lay
results. `FakeTensorMode.cache_clear` (FakeResults) and `ShapeEnv.fake_tensor_cache`, which is found
by `TracingContext`: what was said of the same operator before is forgotten. Without them a graph
may fail where eager trains.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .private_names import (
    FakeResults,
    MissingName,
    TracingContext,
    compute_elementwise_output_strides,
    decomposition_table,
    meta_table,
    op_implementations_dict,
    warn_of,
)

_ATEN = torch.ops.aten
# The positions of what TensorIterator is given, in its order: the first one that tells two
# dimensions apart decides. All devices share it.
_ITERATED = {
    _ATEN.softplus_backward.default: (0, 1),
    _ATEN.hardswish_backward.default: (0, 1),
    _ATEN.hardsigmoid_backward.default: (0, 1),
    _ATEN.hardtanh_backward.default: (0, 1),
    _ATEN.logit_backward.default: (0, 1),
    _ATEN.threshold_backward.default: (1, 0),
    _ATEN.leaky_relu_backward.default: (1, 0),
    _ATEN.xlogy.Tensor: (0, 1),
    _ATEN.special_xlog1py.default: (0, 1),
    _ATEN.logaddexp.default: (0, 1),
    _ATEN.logaddexp2.default: (0, 1),
    _ATEN.logical_or.default: (0, 1),
    _ATEN.logical_and.default: (0, 1),
    _ATEN.logical_xor.default: (0, 1),
    _ATEN.heaviside.default: (0, 1),
    _ATEN.copysign.Tensor: (0, 1),
    _ATEN.floor_divide.default: (0, 1),
    _ATEN.div.Tensor_mode: (0, 1),
}
# Whose first result is contiguous, whatever they are given.
_CONTIGUOUS = (
    _ATEN._log_softmax_backward_data.default,
    _ATEN.mse_loss_backward.default,
    _ATEN.smooth_l1_loss_backward.default,
    _ATEN.huber_loss_backward.default,
    _ATEN.native_layer_norm_backward.default,
)
# The same on the CPU, but that channels_last stays: the position of what decides.
_NORMED = {
    _ATEN.native_batch_norm.default: 0,
    _ATEN.native_batch_norm_backward.default: 1,
}


def _strides_of(op: Any, deciding: Sequence[Tensor], result: Tensor) -> tuple[Any, ...]:
    """The strides that the kernel gives its first result, of which `result` has the sizes."""
    if op in _ITERATED:
        return tuple(compute_elementwise_output_strides(*torch.broadcast_tensors(*deciding)))
    wanted = torch.contiguous_format
    if op in _NORMED and deciding[0].dim() == 4:
        if deciding[0].is_contiguous(memory_format=torch.channels_last):
            wanted = torch.channels_last
    return torch.empty(result.shape, device="meta", memory_format=wanted).stride()


def _fake(mode: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    deciding = [args[i] for i in _DECIDING[op] if i < len(args)]
    if len(deciding) < len(_DECIDING[op]) or not all(map(_is_dense, deciding)):
        return NotImplemented
    if op in _NORMED and deciding[0].device.type != "cpu":
        return NotImplemented
    with mode:
        found = decomposition_table[op](*args, **kwargs)
        several = isinstance(found, (tuple, list))
        first, *rest = found if several else [found]
        if first is None:  # nobody asks for it
            return found
        strides = _strides_of(op, deciding, first)
        if tuple(first.stride()) != strides:
            kind = {"dtype": first.dtype, "device": first.device}
            first = torch.empty_strided(first.shape, strides, **kind)
    return (first, *rest) if several else first


def _is_dense(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided


_DECIDING: dict[Any, tuple[int, ...]] = {
    **_ITERATED,
    **dict.fromkeys(_CONTIGUOUS, (0,)),
    **{op: (position,) for op, position in _NORMED.items()},
}
_FAKES: dict[Any, Callable[..., Any]] = dict.fromkeys(_DECIDING, _fake)


@contextlib.contextmanager
def eager_layouts() -> Iterator[None]:
    """Within, the operators above say how eager lays their results: for all threads, of which one
    traces."""
    tables = op_implementations_dict, meta_table
    try:
        _forget()
        before = [{op: table.get(op) for op in _FAKES} for table in tables]
        compute_elementwise_output_strides(torch.ones(1))  # before anything is changed
        len(decomposition_table)
    except MissingName as error:
        warn_of(error)
        yield
        return
    try:
        for table in tables:
            table.update(_FAKES)
        yield
    finally:
        for table, former in zip(tables, before, strict=True):
            for op, fake in former.items():
                table.pop(op, None)
                if fake is not None:
                    table[op] = fake
        _forget()


def _forget() -> None:
    FakeResults.cache_clear()
    context = TracingContext.try_get()
    mode = context.fake_mode if context is not None else None
    if mode is not None and mode.shape_env is not None:
        mode.shape_env.fake_tensor_cache.clear()

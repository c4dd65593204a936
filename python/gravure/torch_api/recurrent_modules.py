"""LSTM, GRU and RNN are traced, where a graph has what eager runs; elsewhere Dynamo breaks it.

Dynamo breaks graphs at these modules, lest PyTorch's Python versions of them are traced. On a GPU
each is one operator of ours, which cuDNN runs (cudnn_recurrent.py). On the CPU eager's own C++
takes an LSTM in float apart (eager_kernels.py), where it is one operator of oneDNN's. GRU and RNN
on the CPU stay eager's, for nobody asked: traced there, as in a step of compile_step, they have
eager's bits (gru_kernels.py).

Dynamo, too, asks these what such a module gives, and so does a trace for Inductor. PyTorch's
Python version makes one turn for each point of time: that takes Dynamo as long as all the rest of a
small model, and Inductor minutes, where torch.compile leaves the LSTM to eager.

At packed sequences Dynamo breaks the graph: their lengths lie on the host, and are read there.

Private: Dynamo's `VariableBuilder` refuses such modules where the setting `allow_rnn` of `_dynamo`
is off. Without it graphs break there. An operator's `py_kernels` hold the Python version by
`DispatchKey`, `_dispatch_cache` what was found there, and `_op_dk` calls the C++; `tls` knows for
which backend Dynamo traces. Without them such a trace takes longer.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from . import cudnn_recurrent
from .compile_lock import compile_lock
from .private_names import (
    DispatchKey,
    MissingName,
    VariableBuilder,
    _dynamo,
    is_there,
    tls,
)

_LSTM = torch.ops.aten.lstm.input
_PAD = torch.ops.aten._pad_packed_sequence.default
_OF_PACKED = (
    torch.ops.aten.lstm.data,
    torch.ops.aten.gru.data,
    torch.ops.aten.rnn_tanh.data,
    torch.ops.aten.rnn_relu.data,
)
_asked = 0  # for eager's modules: by who traces, under the lock
logger = logging.getLogger("gravure")


def trace_recurrent_modules(is_ours: Callable[[Any], bool]) -> None:
    """Has Dynamo do so where `is_ours` says that the backend is one of Gravure's."""
    try:
        VariableBuilder._wrap = _taking(VariableBuilder._wrap, is_ours)
    except (AttributeError, MissingName) as error:
        logger.warning("this PyTorch breaks graphs at every LSTM, GRU and RNN: %r", error)
        return
    if is_there("DispatchKey") and is_there("tls"):
        for op in (*cudnn_recurrent.MODES, *_OF_PACKED):
            kernels = getattr(op, "py_kernels", {})
            for key in (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd):
                if key in kernels and hasattr(op, "_op_dk"):
                    change = _breaking if op in _OF_PACKED else _as_eager_runs
                    kernels[key] = change(op, kernels[key], is_ours)
                    op._dispatch_cache.clear()
        if hasattr(_PAD, "_op_dk"):  # torch 2.11 has an error there, and no break
            key = DispatchKey.CompositeImplicitAutograd
            _PAD.py_kernels[key] = _breaking(_PAD, functools.partial(_PAD._op_dk, key), is_ours)
            _PAD._dispatch_cache.clear()


def _dynamo_traces_for(is_ours: Callable[[Any], bool]) -> bool:
    tx = getattr(tls, "current_tx", None)
    return tx is not None and is_ours(tx.output.compiler_fn)


def _breaking(
    op: Any, python: Callable[..., Any], is_ours: Callable[[Any], bool]
) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        if _dynamo_traces_for(is_ours):  # and breaks the graph on this
            raise NotImplementedError(
                f"{op} of a packed sequence is eager's: its lengths are read on the host"
            )
        return python(*args)

    return run


def _as_eager_runs(
    op: Any, python: Callable[..., Any], is_ours: Callable[[Any], bool]
) -> Callable[..., Any]:
    @functools.wraps(python)
    def run(x: Tensor, hidden: Any, weights: Sequence[Tensor], *rest: Any) -> Any:
        if _asked > 0 or _dynamo_traces_for(is_ours):
            if cudnn_recurrent.takes(x, weights):
                return cudnn_recurrent.traced(op, x, hidden, weights, *rest)
            if op is _LSTM and _is_for_one_dnn(x):
                return op._op_dk(DispatchKey.CompositeImplicitAutograd, x, hidden, weights, *rest)
        return python(x, hidden, weights, *rest)

    return run


@contextlib.contextmanager
def eager_recurrent_modules() -> Iterator[None]:
    """Within, what is one operator in eager is traced so: for all threads, of which one traces."""
    global _asked
    with compile_lock:
        _asked += 1
        try:
            yield
        finally:
            _asked -= 1


def _is_for_one_dnn(x: Tensor) -> bool:
    kind = x.device.type, x.dtype
    return kind == ("cpu", torch.float32) and not torch.is_autocast_enabled("cpu")


def _taking(wrap: Callable[..., Any], is_ours: Callable[[Any], bool]) -> Callable[..., Any]:
    @functools.wraps(wrap)
    def wrapped(self: Any, value: Any) -> Any:
        if not isinstance(value, nn.RNNBase) or not is_ours(self.tx.output.compiler_fn):
            return wrap(self, value)
        if not has_eagers_operators(value):
            return wrap(self, value)
        with _dynamo.config.patch(allow_rnn=True):
            return wrap(self, value)

    return wrapped


def has_eagers_operators(module: nn.RNNBase) -> bool:
    """Whether a trace of it has what eager runs."""
    if cudnn_recurrent.takes_module(module):
        return True
    if not isinstance(module, nn.LSTM):
        return False
    kinds = {(weight.device.type, weight.dtype) for weight in module.parameters()}
    if len(kinds) != 1:
        return False
    device, dtype = kinds.pop()
    if torch.is_autocast_enabled(device):
        return False  # its weights are cast
    one_dnn = torch.backends.mkldnn.is_available() and not module.proj_size
    return device == "cpu" and dtype == torch.float32 and one_dnn

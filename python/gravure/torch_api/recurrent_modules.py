"""An LSTM is traced, where its operators are eager's; elsewhere Dynamo breaks the graph at it.

Dynamo breaks graphs at LSTM, GRU and RNN, lest PyTorch's Python versions of them are traced. Here
eager's own C++ takes them apart (eager_kernels.py), and an LSTM has eager's bits on the CPU in
float, where it is one operator of oneDNN's.

On a GPU cuDNN asks for the addresses of the weights, which tensors without values have not: that
stays eager's. So do GRU and RNN, for which nobody asked on the CPU: traced there, as in a step of
compile_step, they have eager's bits (gru_kernels.py).

Private: Dynamo's `VariableBuilder` refuses such modules where the setting `allow_rnn` of `_dynamo`
is off. Without it graphs break there.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .private_names import MissingName, VariableBuilder, _dynamo

logger = logging.getLogger("gravure")


def trace_recurrent_modules(is_ours: Callable[[Any], bool]) -> None:
    """Has Dynamo do so where `is_ours` says that the backend is one of Gravure's."""
    try:
        VariableBuilder._wrap = _taking(VariableBuilder._wrap, is_ours)
    except (AttributeError, MissingName) as error:
        logger.warning("this PyTorch breaks graphs at every LSTM: %r", error)


def _taking(wrap: Callable[..., Any], is_ours: Callable[[Any], bool]) -> Callable[..., Any]:
    @functools.wraps(wrap)
    def wrapped(self: Any, value: Any) -> Any:
        if not isinstance(value, nn.LSTM) or not is_ours(self.tx.output.compiler_fn):
            return wrap(self, value)
        if not has_eagers_operators(value):
            return wrap(self, value)
        with _dynamo.config.patch(allow_rnn=True):
            return wrap(self, value)

    return wrapped


def has_eagers_operators(module: nn.LSTM) -> bool:
    """Whether a trace of it has what eager runs."""
    kinds = {(weight.device.type, weight.dtype) for weight in module.parameters()}
    if len(kinds) != 1:
        return False
    device, dtype = kinds.pop()
    if torch.is_autocast_enabled(device):
        return False  # its weights are cast
    one_dnn = torch.backends.mkldnn.is_available() and not module.proj_size
    return device == "cpu" and dtype == torch.float32 and one_dnn

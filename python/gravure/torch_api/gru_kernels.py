"""A GRU on the CPU as functions, with the bits of eager's C++ (aten/src/ATen/native/RNN.cpp).

Eager adds the gates into parts of a matrix and takes `sigmoid_` there, row by row. Traced as
functions the sum is a matrix of its own, whose rows lie one behind the other, and the kernel goes
through all of it at once: other elements fall to its vectors, which round otherwise than its rest.
So the sum is given a gap behind each row here. Where cuDNN does not run it, a GPU traces the C++.

Private: `_op_dk` of an operator (`OpOverload`) calls its C++ kernel for a `DispatchKey`. Without it
a GRU on a GPU is not traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .private_names import DispatchKey, OpOverload

_CELL = torch.ops.aten.gru_cell.default
_LAYERS = torch.ops.aten.gru.input


def _gate(a: Tensor, b: Tensor) -> Tensor:
    """`a.add_(b).sigmoid_()` where both are parts of wider matrices."""
    return F.pad(a + b, (0, 1))[:, :-1].sigmoid()


def _next_state(from_input: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The next hidden state; `from_input`: what the input adds to the three gates."""
    reset_in, update_in, new_in = from_input.unsafe_chunk(3, 1)
    reset, update, new = F.linear(hidden, weight, bias).unsafe_chunk(3, 1)
    kept = _gate(update, update_in)
    made = (new_in + new * _gate(reset, reset_in)).tanh()
    return (hidden - made) * kept + made


def _cell(
    x: Tensor,
    hidden: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    if x.device.type != "cpu":
        return of_cpp(_CELL, x, hidden, w_ih, w_hh, b_ih, b_hh)
    return _next_state(F.linear(x, w_ih, b_ih), hidden, w_hh, b_hh)


def _layers(
    x: Tensor,
    hidden: Tensor,
    weights: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor]:
    given = (x, hidden, weights, has_biases, layers, dropout, train, bidirectional, batch_first)
    if x.device.type != "cpu":
        return of_cpp(_LAYERS, *given)
    x = x.transpose(0, 1) if batch_first else x
    count, directions = 4 if has_biases else 2, 2 if bidirectional else 1
    states, last = hidden.unbind(0), []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            i = layer * directions + direction
            w_ih, w_hh, *biases = weights[i * count : (i + 1) * count]
            b_ih, b_hh = biases or (None, None)
            rows = F.linear(x, w_ih, b_ih).unbind(0)
            state, seen = states[i], []
            for row in reversed(rows) if direction else rows:
                state = _next_state(row, state, w_hh, b_hh)
                seen.append(state)
            outputs.append(torch.stack(seen[::-1] if direction else seen, 0))
            last.append(state)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout != 0 and train and layer < layers - 1:
            x = torch.dropout(x, dropout, True)
    return x.transpose(0, 1) if batch_first else x, torch.stack(last, 0)


def of_cpp(op: OpOverload, *args: Any) -> Any:
    """What eager's C++ takes it apart into."""
    return op._op_dk(DispatchKey.CompositeImplicitAutograd, *args)


KERNELS: dict[Any, Callable[..., Any]] = {_CELL: _cell, _LAYERS: _layers}

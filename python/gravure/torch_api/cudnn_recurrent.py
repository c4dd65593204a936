"""LSTM, GRU and RNN on a GPU: each is one operator of a graph, `gravure::recurrent`, run by cuDNN.

    %output, %hy, %cy, %reserve = gravure.recurrent(%x, %weights, %hx, %cx, mode, …)
    [%dx, %dhx, %dcx, %dw, …] = gravure.recurrent_backward(…, %reserve, %d_output, None, None, …)

Eager's own `lstm` cannot be traced: it asks for the addresses of the weights, which tensors without
values have not. ir/facts/recurrent_operators.cpp runs it.

What only cuDNN knows is asked of it while tracing, by a run on zeros: where each weight lies in its
buffer, and how many bytes a forward leaves for its backward. Neither draws from a generator. Where
sizes are open nobody knows those bytes while tracing, and the stand-in has none: they are asked for
once a program is written for known sizes (reserve_bytes()).

Left to eager, so that Dynamo breaks the graph: packed sequences, whose lengths are read on the
host, and all inside autocast, which casts the weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..library.load import program_class
from ..library.namespace import LIBRARY
from .dispatch import plainly, without_modes
from .fake_tensors import has_open_sizes
from .operators import OpOverload

RECURRENT = "gravure::recurrent"
RECURRENT_BACKWARD = "gravure::recurrent_backward"
_RESERVE = 5  # the position of its reserve among the arguments
_LSTM = 2
# cuDNN's numbers for them.
MODES = {
    torch.ops.aten.rnn_relu.input: 0,
    torch.ops.aten.rnn_tanh.input: 1,
    torch.ops.aten.lstm.input: _LSTM,
    torch.ops.aten.gru.input: 3,
}
_OPEN = -1  # bytes for the backward, where sizes are open


@functools.cache
def _takes(device: torch.device, dtype: torch.dtype, enabled: bool) -> bool:
    """Whether cuDNN computes recurrent modules of this dtype. `enabled`: the setting's, for the
    cache."""
    if device.type != "cuda" or not enabled:
        return False
    with without_modes(), plainly():
        return torch.ops.aten.cudnn_is_acceptable(torch.empty(1, dtype=dtype, device=device))


def takes(x: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether cuDNN computes it in eager, where nothing is cast."""
    kinds = {(given.device, given.dtype) for given in (x, *weights)}
    if len(kinds) != 1 or torch.is_autocast_enabled("cuda"):
        return False
    if any(isinstance(size, int) and size == 0 for size in x.shape):
        return False  # PyTorch asks cuDNN for nothing empty
    return _takes(*kinds.pop(), torch.backends.cudnn.enabled)


def takes_module(module: nn.RNNBase) -> bool:
    """Whether Dynamo need not break a graph at it."""
    weights = [weight for layer in module.all_weights for weight in layer]
    plain = all(type(weight) in (Tensor, nn.Parameter) for weight in weights)
    return bool(weights) and plain and takes(weights[0], weights)


@dataclass(frozen=True)
class _Settings:
    mode: int
    has_biases: bool
    layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool


@dataclass(frozen=True)
class _Layout:
    offsets: tuple[int, ...]  # of each weight in cuDNN's buffer
    flat: int  # elements of the buffer
    reserve: int  # bytes that a forward leaves for its backward


@dataclass(frozen=True)
class _Asked:
    """All that a layout depends on."""

    device: torch.device
    dtype: torch.dtype
    x: tuple[int, ...]
    hx: tuple[int, ...]
    cx: tuple[int, ...] | None
    weights: tuple[torch.Size, ...]
    settings: _Settings
    choices: tuple[bool, bool]  # by which cuDNN chooses its algorithm


@functools.cache
def _layout(asked: _Asked) -> _Layout:
    s = asked.settings
    like = {"dtype": asked.dtype, "device": asked.device}
    with without_modes(), plainly(), torch.cuda.device(asked.device):
        width = (asked.cx or asked.hx)[2]
        projected = asked.hx[2] if asked.hx[2] != width else 0
        a_layer = (4 if s.has_biases else 2) + bool(projected)
        weights = [torch.zeros(shape, **like) for shape in asked.weights]
        sizes = s.mode, width, projected, s.layers, s.batch_first
        buffer = torch.ops.aten._cudnn_rnn_flatten_weight(
            weights, a_layer, asked.x[-1], *sizes, s.bidirectional
        )
        offsets = tuple(weight.storage_offset() for weight in weights)
        if not s.train:
            return _Layout(offsets, buffer.numel(), 0)
        state = None
        if s.dropout:
            state = torch.ops.aten._cudnn_init_dropout_state(
                s.dropout, True, 0, dtype=torch.uint8, device=asked.device
            )
        cx = None if asked.cx is None else torch.zeros(asked.cx, **like)
        x, hx = torch.zeros(asked.x, **like), torch.zeros(asked.hx, **like)
        *_, reserve, _ = torch.ops.aten._cudnn_rnn(
            x, weights, a_layer, buffer, hx, cx, *sizes,
            s.dropout, True, s.bidirectional, [], state,
        )  # fmt: skip
        return _Layout(offsets, buffer.numel(), reserve.numel())


def traced(op: Any, x: Tensor, hidden: Any, weights: Sequence[Tensor], *rest: Any) -> Any:
    """`op`, one of MODES, as one operator of the graph."""
    settings = _Settings(MODES[op], *rest)
    hx, cx = hidden if settings.mode == _LSTM else (hidden, None)
    given = [each for each in (x, hx, cx, *weights) if each is not None]
    is_open = any(has_open_sizes(each) for each in given)
    layout = _layout(_asked(x, weights, hx, cx, settings, _one if is_open else int))
    reserve = 0  # in evaluation eager's backward fails, and so does ours
    if settings.train and torch.is_grad_enabled() and any(each.requires_grad for each in given):
        reserve = _OPEN if is_open else layout.reserve
    output, hy, cy, _ = _operator()(
        x, list(weights), hx, cx, settings.mode, *rest, reserve, layout.offsets, layout.flat
    )
    return (output, hy, cy) if settings.mode == _LSTM else (output, hy)


def _one(size: Any) -> int:
    """A size that stands for any other: where weights lie does not depend on it."""
    return size if isinstance(size, int) else 1


def _asked(
    x: Tensor,
    weights: Sequence[Tensor],
    hx: Tensor,
    cx: Tensor | None,
    settings: _Settings,
    known: Callable[[Any], Any],
) -> _Asked:
    """`known`: the number that a size is."""

    def sizes(of: Tensor) -> tuple[int, ...]:
        return tuple(map(known, of.shape))

    choices = torch.backends.cudnn.allow_tf32, torch.are_deterministic_algorithms_enabled()
    shapes = tuple(weight.shape for weight in weights)
    of_cx = None if cx is None else sizes(cx)
    return _Asked(x.device, x.dtype, sizes(x), sizes(hx), of_cx, shapes, settings, choices)


def reserve_bytes(arguments: Sequence[Any], known: Callable[[Any], Any]) -> int | None:
    """Of a call of gravure::recurrent with stand-ins for tensors, where its sizes were open when it
    was traced: the bytes of its last result. `known`: the number that a size is by now. None where
    one is unknown; 0 where nothing is kept."""
    x, weights, hx, cx, mode, *rest, reserve, _, _ = arguments
    if reserve != _OPEN:
        return reserve
    asked = _asked(x, weights, hx, cx, _Settings(mode, *rest), known)
    return None if None in (*asked.x, *asked.hx) else _layout(asked).reserve


def with_reserve(overload: OpOverload, args: Sequence[Any], given: Collection[Any]) -> OpOverload:
    """`overload`, a call of the graph with these `args`; or the one that writes over its reserve,
    where this is `given` to its last reader, and has no other."""
    if overload.name() != RECURRENT_BACKWARD:
        return overload
    reserve = args[_RESERVE]
    if reserve not in given or len(reserve.users) > 1:
        return overload
    return torch.ops.gravure.recurrent_backward_donated.default


# ---- the operators' stand-ins, and what autograd calls


@functools.cache
def _operator() -> Any:
    """gravure::recurrent, which the library defines, ready to be traced."""
    program_class()
    torch.library.register_fake(RECURRENT, _fake, lib=LIBRARY)
    torch.library.register_fake(RECURRENT_BACKWARD, _fake_backward, lib=LIBRARY)
    torch.library.register_autograd(RECURRENT, _backward, setup_context=_save, lib=LIBRARY)
    return torch.ops.gravure.recurrent.default


def _rows(like: Tensor, width: int, batch_first: bool) -> Tensor:
    """A sequence as cuDNN makes it: one point of time behind the other."""
    first, second = like.shape[:2]
    if batch_first:
        return like.new_empty(second, first, width).transpose(0, 1)
    return like.new_empty(first, second, width)


def _fake(
    x: Tensor,
    weights: list[Tensor],
    hx: Tensor,
    cx: Tensor | None,
    mode: int,
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    reserve: int,
    offsets: list[int],
    flat: int,
) -> tuple[Tensor, ...]:
    output = _rows(x, hx.shape[2] * (2 if bidirectional else 1), batch_first)
    hy = hx.new_empty(hx.shape)
    cy = hx.new_empty(0) if cx is None else cx.new_empty(cx.shape)
    return output, hy, cy, x.new_empty(max(reserve, 0), dtype=torch.uint8)


def _fake_backward(
    x: Tensor,
    weights: list[Tensor],
    hx: Tensor,
    cx: Tensor | None,
    output: Tensor,
    reserve: Tensor,
    d_output: Tensor | None,
    d_hy: Tensor | None,
    d_cy: Tensor | None,
    mode: int,
    has_biases: bool,
    layers: int,
    dropout: float,
    bidirectional: bool,
    batch_first: bool,
    offsets: list[int],
    flat: int,
    of_weights: bool,
) -> list[Tensor]:
    d_cx = hx.new_empty(0) if cx is None else cx.new_empty(cx.shape)
    found = [_rows(x, x.shape[2], batch_first), hx.new_empty(hx.shape), d_cx]
    return found + [w.new_empty(w.shape) for w in weights if of_weights]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weights, hx, cx, mode, *settings, _, offsets, flat = inputs
    has_biases, layers, dropout, _, bidirectional, batch_first = settings
    ctx.set_materialize_grads(False)
    ctx.has_cells = cx is not None
    ctx.save_for_backward(x, hx, *([cx] if ctx.has_cells else []), output[0], output[3], *weights)
    ctx.settings = (
        mode, has_biases, layers, dropout, bidirectional, batch_first, offsets, flat,
    )  # fmt: skip


def _backward(ctx: Any, d_output: Any, d_hy: Any, d_cy: Any, _: Any) -> tuple[Any, ...]:
    x, hx, *saved = ctx.saved_tensors
    cx = saved.pop(0) if ctx.has_cells else None
    output, reserve, *weights = saved
    of_weights = any(ctx.needs_input_grad[1])
    d_x, d_hx, d_cx, *d_weights = torch.ops.gravure.recurrent_backward(
        x, weights, hx, cx, output, reserve, d_output, d_hy, d_cy if ctx.has_cells else None,
        *ctx.settings, of_weights,
    )  # fmt: skip
    d_weights = d_weights or [None] * len(weights)
    rest = [None] * 10
    return d_x, d_weights, d_hx, d_cx if ctx.has_cells else None, *rest

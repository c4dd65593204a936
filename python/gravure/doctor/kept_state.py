"""State that steps change, put back behind them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


@contextlib.contextmanager
def kept_state(modules: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> Iterator[None]:
    """Parameters, buffers, gradients, attributes that are tensors or numbers, optimizers' state and
    default random states are afterwards as they were, tensors at their addresses. Settings of
    groups are not put back: the scheduler that changed them goes on from there."""
    attributes = _attributes(modules)
    values = _values(modules, attributes)
    grads = [(p, p.grad, _copy(p.grad)) for p in values if isinstance(p, nn.Parameter)]
    states = [(o, {p: dict(s) for p, s in o.state.items()}, _copies(o)) for o in optimizers]
    copies = [_once(value).clone() for value in values]
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            with torch.no_grad():
                for owner, name, attribute in attributes:
                    setattr(owner, name, attribute)
                for value, copy in zip(values, copies, strict=True):
                    _once(value).copy_(copy)
                for parameter, grad, copy in grads:
                    parameter.grad = grad
                    if grad is not None:
                        grad.copy_(copy)
                for optimizer, state, copied in states:
                    _put_back(optimizer, state, copied)


_Attributes = list[tuple[nn.Module, str, Any]]


def _values(modules: Sequence[nn.Module], attributes: _Attributes) -> list[Tensor]:
    found = [t for m in modules for t in (*m.parameters(), *m.buffers())]
    found += [a for _, _, a in attributes if isinstance(a, Tensor) and not a.is_inference()]
    return list({id(tensor): tensor for tensor in found}.values())


def _once(value: Tensor) -> Tensor:
    """Each of its elements once: what is expanded cannot be written as a whole."""
    value = value.detach()
    strides = value.stride() if value.layout is torch.strided else ()
    for dim, stride in enumerate(strides):
        if stride == 0 and value.shape[dim] > 1:
            value = value.narrow(dim, 0, 1)
    return value


def _attributes(modules: Sequence[nn.Module]) -> _Attributes:
    return [
        (each, name, value)
        for module in modules
        for each in module.modules()
        for name, value in [*vars(each).items(), *each.named_buffers(recurse=False)]
        if isinstance(value, (Tensor, int, float))
    ]


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _copies(optimizer: Optimizer) -> dict[Any, dict[str, Any]]:
    return {p: {k: _copy(v) for k, v in state.items()} for p, state in optimizer.state.items()}


def _put_back(
    optimizer: Optimizer, former: dict[Any, dict[str, Any]], copies: dict[Any, dict[str, Any]]
) -> None:
    for parameter in list(optimizer.state):
        if parameter not in former:
            del optimizer.state[parameter]
    for parameter, state in former.items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                value.copy_(copies[parameter][key])
            optimizer.state[parameter][key] = value

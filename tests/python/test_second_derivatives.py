"""Derivatives inside of a compiled function, by torch.func: forward mode, and over reverse mode."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from running import bits, need_library
from torch import Tensor
from torch.func import functional_call, hessian, jacfwd, jvp, vmap
from training import replays

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


def laplacian(net: nn.Module) -> Callable[[Tensor], Tensor]:
    parameters = dict(net.named_parameters())

    def at(point: Tensor) -> Tensor:
        return functional_call(net, parameters, (point,)).squeeze()

    def loss(x: Tensor) -> Tensor:
        return torch.einsum("bii->b", vmap(hessian(at))(x)).square().mean()

    return loss


def jacobian(net: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: vmap(jacfwd(lambda point: net(point)))(x).square().mean()


def directional(net: nn.Module) -> Callable[[Tensor], Tensor]:
    def loss(x: Tensor) -> Tensor:
        value, change = jvp(lambda point: net(point), (x,), (torch.ones_like(x),))
        return (value * change).square().mean()

    return loss


@pytest.mark.parametrize("way", ["compile", "compile_step"])
@pytest.mark.parametrize("make", [laplacian, jacobian, directional], ids=lambda m: m.__name__)
def test_law_1_gradients_through_them_are_eagers(make: Callable[..., Any], way: str) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    twin = copy.deepcopy(net)
    ours, theirs = make(net), make(twin)
    step = way == "compile_step"
    call = gravure.compile_step(ours) if step else torch.compile(ours, backend="gravure")
    for i in range(8):
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(i))
        expected, found = theirs(x), call(x)
        expected.backward()
        if not step:
            found.backward()
        assert bits(found) == bits(expected), i
        for a, b in zip(net.parameters(), twin.parameters(), strict=True):
            assert bits(a.grad) == bits(b.grad), i
        net.zero_grad()
        twin.zero_grad()
    if make is not laplacian or not step:  # zeros without memory are in no capture
        assert replays(gravure.report())

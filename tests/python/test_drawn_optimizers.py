"""Drawn optimizers, changed between steps, have eager's bits; GRAVURE_DRAWN=9:99 draws others."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from random import Random
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from running import bits, need_library
from torch.optim import Optimizer

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

SEEDS = range(*map(int, os.environ.get("GRAVURE_DRAWN", "0:12").split(":")))
ROWS, STEPS = (4, 4, 4, 7), 10

# Whose own step can be traced; the settings that each has, besides a rate.
KINDS: dict[type[Optimizer], tuple[str, ...]] = {
    torch.optim.SGD: ("momentum", "weight_decay", "maximize", "fused"),
    torch.optim.Adam: ("amsgrad", "weight_decay", "maximize", "fused"),
    torch.optim.AdamW: ("amsgrad", "weight_decay", "maximize", "fused"),
    torch.optim.RMSprop: ("momentum", "centered", "weight_decay"),
    torch.optim.Adagrad: ("weight_decay",),
    torch.optim.Adadelta: ("weight_decay",),
    torch.optim.Adamax: ("weight_decay",),
    torch.optim.NAdam: ("weight_decay",),
    torch.optim.Rprop: (),
}
VALUES = {"momentum": [0.0, 0.9], "weight_decay": [0.0, 0.1]}


def model() -> nn.Sequential:
    layers = [nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Dropout(0.2), nn.Linear(5, 3)]
    return nn.Sequential(*layers)


def drawn(draw: Random, module: nn.Sequential) -> Optimizer:
    kind, names = draw.choice(list(KINDS.items()))
    settings: dict[str, Any] = {n: draw.choice(VALUES.get(n, [False, True])) for n in names}
    if not settings.get("fused"):
        settings["foreach"] = draw.choice([None, False, True])
    rate: Any = draw.choice([0.01, 0.1])
    if draw.random() < 0.4 and not settings.get("foreach", True):
        rate = torch.tensor(rate)
    groups = [{"params": list(module.parameters())}]
    if draw.random() < 0.5:
        groups = [{"params": list(module[i].parameters()), "lr": rate / (i + 1)} for i in (0, 2, 4)]
    return kind(groups, lr=rate, **settings)


def _rate(number: int, _: nn.Sequential, optimizer: Optimizer) -> None:
    group = optimizer.param_groups[number % len(optimizer.param_groups)]
    if torch.is_tensor(group["lr"]):
        group["lr"].mul_(0.7)
    else:
        group["lr"] = 0.03 + (number % 2) / 100


def _decay(number: int, _: nn.Sequential, optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        if "weight_decay" in group:
            group["weight_decay"] = 0.05 * (number % 2)


def _loaded(_: int, __: nn.Sequential, optimizer: Optimizer) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def _cleared(_: int, __: nn.Sequential, optimizer: Optimizer) -> None:
    if not isinstance(optimizer, torch.optim.Adagrad):  # which cannot make it again
        optimizer.state.clear()


def _other_parameters(_: int, module: nn.Sequential, __: Optimizer) -> None:
    module.load_state_dict({key: value * 0.5 for key, value in module.state_dict().items()})


def _frozen(_: int, module: nn.Sequential, optimizer: Optimizer) -> None:
    # PyTorch's own fused SGD fails where only some parameters have a momentum.
    if not optimizer.param_groups[0].get("fused"):
        module[2].weight.requires_grad_(not module[2].weight.requires_grad)


Change = Callable[[int, nn.Sequential, Optimizer], None]
CHANGES: list[Change] = [_rate, _decay, _loaded, _cleared, _other_parameters, _frozen]


def state_of(module: nn.Sequential, optimizer: Optimizer) -> list[Any]:
    states = [optimizer.state.get(p, {}) for p in module.parameters()]
    own = [[(key, bits(state[key])) for key in sorted(state)] for state in states]
    return [*map(bits, module.parameters()), own]


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_with_a_drawn_optimizer(seed: int) -> None:
    draw = Random(seed)
    torch.manual_seed(seed)
    modules = [model()]
    modules.append(copy.deepcopy(modules[0]))
    optimizers = [drawn(Random(seed), module) for module in modules]
    step = gravure.compile_step(
        lambda x: modules[1](x).square().mean(), optimizer=optimizers[1], options={"poison": True}
    )
    done = []
    with torch._dynamo.config.patch(recompile_limit=64):
        for number in range(STEPS):
            change = draw.choice([None, None, *CHANGES])
            done.append(getattr(change, "__name__", ""))
            for module, optimizer in zip(modules, optimizers, strict=True):
                if change is not None:
                    change(number, module, optimizer)
            x = torch.randn(draw.choice(ROWS), 6)
            torch.manual_seed(number)
            expected = modules[0](x).square().mean()
            expected.backward()
            optimizers[0].step()
            optimizers[0].zero_grad()
            torch.manual_seed(number)
            assert bits(step(x)) == bits(expected), (optimizers[0], done)
            found = [state_of(m, o) for m, o in zip(modules, optimizers, strict=True)]
            assert found[0] == found[1], (optimizers[0], done)

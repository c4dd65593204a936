"""All of torch.optim's optimizers in each way that they have, and all of its schedulers; and what
people make of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn as nn
from gravure.steps.own_optimizers import OWN
from torch import Tensor
from torch.optim import SGD, Optimizer, lr_scheduler

#: Each optimizer with each scheduler; else each with two.
WHOLE = os.environ.get("GRAVURE_WHOLE_PRODUCT") == "1"

_SETTINGS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    "Rprop": {"lr": 0.01},
    "RMSprop": {"lr": 0.01, "momentum": 0.5, "centered": True},
}
#: Its step reads a tensor that it computes, and branches on it.
RUN_AS_THEY_ARE = {"Adafactor"}


class Matrices(nn.Module):
    """What Muon takes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16, bias=False)
        self.second = nn.Linear(16, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


class Scaled(SGD):
    """Somebody's own: its step reads an attribute."""

    scale = 1.0

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data.add_(p.grad, alpha=-0.1 * self.factor())

    def factor(self) -> float:
        return self.scale


def patch_step(optimizer: Optimizer, noted: Callable[[], None]) -> None:
    """As wrappers do on the instance: each step is noted, and lowers the rate first."""
    inner = optimizer.step

    def step(closure: Any = None) -> Any:
        noted()
        optimizer.param_groups[0]["lr"] *= 0.9
        return inner(closure)

    optimizer.step = step  # type: ignore[method-assign]


def kinds() -> Iterator[Any]:
    """Parameters of a test: a class, and the way that its kernels are chosen."""
    for kind in sorted(OWN, key=lambda kind: kind.__name__):
        names = kind.__init__.__code__.co_varnames
        for way in ({}, {"foreach": True}, {"fused": True}):
            if all(name in names for name in way):
                yield pytest.param(kind, way, id="-".join([kind.__name__, *way]))


def make(kind: Any, way: dict[str, bool], model: nn.Module) -> Optimizer:
    return kind(model.parameters(), **_SETTINGS.get(kind.__name__, {}), **way)


def cosine(optimizer: Optimizer) -> Any:
    return lr_scheduler.CosineAnnealingLR(optimizer, 20)


def one_cycle(optimizer: Optimizer) -> Any:
    return lr_scheduler.OneCycleLR(
        optimizer, 0.05, total_steps=14, cycle_momentum=has_momentum(optimizer)
    )


def has_momentum(optimizer: Optimizer) -> bool:
    """Which these schedulers change, too."""
    return "momentum" in optimizer.defaults or "betas" in optimizer.defaults


SCHEDULES: dict[str, Callable[[Optimizer], Any]] = {
    "cosine": cosine,
    "one_cycle": one_cycle,
    "step": lambda o: lr_scheduler.StepLR(o, 3),
    "multi_step": lambda o: lr_scheduler.MultiStepLR(o, [2, 5]),
    "constant": lambda o: lr_scheduler.ConstantLR(o, 0.5, 3),
    "linear": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=6),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, 8),
    "warm_restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 4, cycle_momentum=has_momentum(o)),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda i: i / 4 if i < 4 else 1.0),
    "multiplicative": lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: 0.95),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ExponentialLR(o, 0.9), lr_scheduler.LinearLR(o)]
    ),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [4]
    ),
}

#: Of each optimizer.
TWO = list(SCHEDULES) if WHOLE else ["cosine", "one_cycle"]

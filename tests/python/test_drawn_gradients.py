"""Drawn: models whose results lie anyhow, and losses that give some of them gradients that do.

Each step's gradients are eager's in every bit, or a warning has said that they may not be.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from random import Random
from typing import Any

import gravure  # noqa: F401  registers the backend
import pytest
import torch
import torch.nn.functional as F
from running import DEVICE, bits, need_library
from torch import Tensor, nn

need_library()

FIRST, LAST = map(int, os.environ.get("GRAVURE_DRAWN_GRADIENTS", "0:12").split(":"))
SAID = "memory format, so it is copied first"

PARTS: list[Callable[[], nn.Module]] = [
    lambda: nn.Linear(16, 16),
    lambda: nn.LayerNorm(16),
    lambda: nn.GroupNorm(2, 6),
    lambda: nn.Conv1d(6, 6, 3, padding=1),
    lambda: nn.Dropout(0.2),
    nn.GELU,
    lambda: nn.Softmax(1),
]
#: What a result is of what is computed, [4, 6, 16].
VIEWS: list[Callable[[Tensor], Tensor]] = [
    lambda h: h * 2,
    lambda h: (h * 2).transpose(1, 2),
    lambda h: h.transpose(0, 2) * 2,
    lambda h: h.exp().permute(2, 0, 1),
    lambda h: torch.softmax(h, -1),
    lambda h: h.sum(1),
    lambda h: F.scaled_dot_product_attention(h, h, h),
]
#: What a loss makes of it.
LOSSES: list[Callable[[Tensor], Tensor]] = [
    lambda y: y.square().mean(),
    lambda y: y.sum(),
    lambda y: (y.transpose(-1, -2) * torch.arange(y.numel(), device=y.device).view(
        *y.shape[:-2], y.shape[-1], y.shape[-2])).mean(),
    lambda y: (y @ torch.ones(y.shape[-1], 3, device=y.device)).square().sum(),
    lambda y: y[..., ::2].exp().sum(),
    lambda y: F.cross_entropy(y.flatten(1), torch.zeros(len(y), dtype=torch.long, device=y.device)),
]  # fmt: skip


class Drawn(nn.Module):
    def __init__(self, drawn: Random) -> None:
        super().__init__()
        self.parts = nn.ModuleList(drawn.choice(PARTS)() for _ in range(drawn.randint(1, 4)))
        self.views = [drawn.choice(VIEWS) for _ in range(drawn.randint(1, 3))]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        for part in self.parts:
            x = part(x)
        return tuple([view(x) for view in self.views])


@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_gradients_are_eagers(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    drawn = Random(seed)
    torch.manual_seed(seed)
    model = Drawn(drawn).to(DEVICE)
    given = nn.Parameter(torch.randn(4, 6, 16, device=DEVICE))
    choices = [[drawn.choice([None, *LOSSES]) for _ in model.views] for _ in range(2)]
    choices[0][drawn.randrange(len(model.views))] = drawn.choice(LOSSES)
    often = drawn.random() < 0.3  # losses change by turns
    held, twice = drawn.random() < 0.3, drawn.random() < 0.2

    def trained(call: Callable[[Tensor], Any]) -> list[Any]:
        found = []
        for step in range(8):
            if not held or step % 3 == 0:
                model.zero_grad()
                given.grad = None
            torch.manual_seed(step)
            results = call(given * (1 + step))
            chosen = choices[step % 2 if often else 0]
            losses = [loss(y) for loss, y in zip(chosen, results, strict=True) if loss is not None]
            if not losses:
                continue
            total = torch.stack(losses).sum()
            if twice:
                total.backward(retain_graph=True)
            total.backward()
            every = [given, *model.parameters()]
            found.append([bits(t.grad) if t.grad is not None else None for t in every])
        return found

    with caplog.at_level(logging.WARNING, "gravure"):
        torch._dynamo.reset()
        ours = trained(torch.compile(model, backend="gravure", options={"poison": True}))
    told = [r for r in caplog.records if SAID in r.getMessage()]
    expected = trained(model)
    assert ours == expected or (told and often)

"""A small model like Llama, and what the tests of torchtitan's releases share."""

from __future__ import annotations

import importlib.util
from typing import Any

import gravure
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor

STEPS = 6


def is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        y = self.before(x)
        q, k, v = (
            layer(y).view(rows, length, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = torch.softmax(q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5, -1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(rows, length, width))
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 32)
        self.layers = nn.ModuleDict({str(i): Block(32, 4) for i in range(2)})
        self.out = nn.Linear(32, 128, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers.values():
            x = layer(x)
        return self.out(x)


def llama() -> Llama:
    torch.manual_seed(0)
    return Llama()


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return tuple(torch.randint(0, 128, (2, 16), generator=generator) for _ in range(2))


def loss_of(prediction: Tensor, labels: Tensor, **_: Any) -> Tensor:
    local = prediction.to_local() if isinstance(prediction, DTensor) else prediction
    return F.cross_entropy(local.flatten(0, 1), labels.flatten())


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)


def replays() -> int:
    graphs = gravure.report().graphs
    return sum(program.stats["replays"] for graph in graphs for program in graph.programs)

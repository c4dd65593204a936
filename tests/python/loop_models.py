"""Small real models for drawn loops, one a habit of users'. Each class stands alone in a script.

`inputs(draws, rows)` is a batch, on the CPU. What else is drawn: drawn_models.py.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn_models import CLASSES, WIDTH, DrawnModel
from torch import Tensor
from torch.utils.checkpoint import checkpoint


class Drawn(DrawnModel):
    @staticmethod
    def inputs(draws: torch.Generator, rows: int) -> tuple[Tensor, ...]:
        x = torch.randn(rows, WIDTH, generator=draws)
        return x, torch.randint(0, CLASSES, (rows,), generator=draws)


class Mlp(nn.Module):
    """Dropout, whose share is read in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)
        self.dropout = 0.2

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.dropout(F.gelu(self.first(x)), self.dropout, self.training))

    @staticmethod
    def inputs(draws: torch.Generator, rows: int) -> tuple[Tensor, ...]:
        return (torch.randn(rows, 8, generator=draws),)


class Images(nn.Module):
    """Running statistics, and a layout that users change."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.conv(x))).mean((2, 3)))

    @staticmethod
    def inputs(draws: torch.Generator, rows: int) -> tuple[Tensor, ...]:
        return (torch.randn(rows, 3, 6, 6, generator=draws),)


class Experts(nn.Module):
    """As many rows to each expert as the batch says: sizes are read on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(4, 16, 16))

    def forward(self, x: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        sizes = counts.tolist()
        for size in sizes:
            torch._check(size >= 0)
            torch._check(size <= x.shape[0])
        products = [piece @ self.weights[i] for i, piece in enumerate(x.split(sizes))]
        return torch.cat(products), sum(F.gelu(product).sum() for product in products)

    @staticmethod
    def inputs(draws: torch.Generator, rows: int) -> tuple[Tensor, ...]:
        experts = torch.randint(0, 4, (rows,), generator=draws)
        return torch.randn(rows, 16, generator=draws), F.one_hot(experts, 4).sum(0)


class Averaged(nn.Module):
    """A buffer that each step reassigns, and one that it writes into."""

    average: Tensor
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("average", torch.zeros(8))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).tanh()
        if self.training:
            self.average = 0.9 * self.average + 0.1 * y.detach().mean(0)
            self.steps += 1
        return y - self.average

    @staticmethod
    def inputs(draws: torch.Generator, rows: int) -> tuple[Tensor, ...]:
        return (torch.randn(rows, 8, generator=draws),)


class Adapter(nn.Module):
    """A layer of its own on a base that all adapters share."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.down, self.up = base, nn.Linear(8, 2, bias=False), nn.Linear(2, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.base(x)) + self.up(self.down(x))


class Adapters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        base = nn.Linear(8, 8).requires_grad_(False)
        self.layers = nn.ModuleList(Adapter(base) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    @staticmethod
    def inputs(draws: torch.Generator, rows: int) -> tuple[Tensor, ...]:
        return (torch.randn(rows, 8, generator=draws),)


class Recurrent(nn.Module):
    """Its last result has its argument's shape: users feed it in again."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.gate, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        gate = self.gate(h).sigmoid()
        h = gate * h + (1 - gate) * self.hidden(h).tanh()
        return self.head(h), h

    @staticmethod
    def inputs(draws: torch.Generator, rows: int) -> tuple[Tensor, ...]:
        return (torch.randn(rows, 8, generator=draws),)


class Language(nn.Module):
    """Tokens, attention, a head that is tied to the table, and a loss that looks labels up."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        x = self.table(tokens)
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        logits = self.head(x)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits

    @staticmethod
    def inputs(draws: torch.Generator, rows: int) -> tuple[Tensor, ...]:
        tokens = torch.randint(0, 11, (rows, 6), generator=draws)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


class Views(nn.Module):
    """Results that are views of its argument, of its parameter and of each other, and a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(8, 8), nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.linear(x).exp() * self.scale
        z = y * 2
        rows, w = z.unbind(0), self.scale.view(2, 4)
        return {"x": x.view(-1), "y": y, "rows": rows, "t": z.t(), "w": w}

    @staticmethod
    def inputs(draws: torch.Generator, rows: int) -> tuple[Tensor, ...]:
        return (torch.randn(rows, 8, generator=draws),)


class Plain(nn.Module):
    """Results that their own backward needs: exp, tanh, softmax, and an inner product."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.first(x).tanh()
        z = self.second(y).softmax(1)
        return z, y, (z * y).sum(1), y[1:], y.detach()

    @staticmethod
    def inputs(draws: torch.Generator, rows: int) -> tuple[Tensor, ...]:
        return (torch.randn(rows, 8, generator=draws),)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return gradient * w * 2, (gradient * x * 2).sum(0)


class Custom(nn.Module):
    """A function with a backward of its own, and a block that is recomputed."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.linear = nn.Parameter(torch.randn(8)), nn.Linear(8, 8)

    def _block(self, x: Tensor) -> Tensor:
        # On a GPU AOTAutograd draws otherwise than eager here (docs/torch-compile.md, Bits).
        return F.dropout(F.gelu(self.linear(x)), 0.0 if x.is_cuda else 0.3, self.training)

    def forward(self, x: Tensor) -> Tensor:
        return Doubled.apply(x, self.scale) + checkpoint(self._block, x, use_reentrant=False)

    @staticmethod
    def inputs(draws: torch.Generator, rows: int) -> tuple[Tensor, ...]:
        return (torch.randn(rows, 8, generator=draws),)


class Writing(nn.Module):
    """Writes into its second argument, as caches and statistics of the caller's are written."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, cache: Tensor) -> Tensor:
        y = self.linear(x)
        cache.mul_(0.5).add_(y.detach(), alpha=0.5)
        return (y * cache).relu()

    @staticmethod
    def inputs(draws: torch.Generator, rows: int) -> tuple[Tensor, ...]:
        return torch.randn(rows, 8, generator=draws), torch.zeros(rows, 8)


class Broken(nn.Module):
    """Dynamo ends a graph in the middle: two compiled graphs, and Python between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.calls = nn.Linear(8, 8), nn.Linear(8, 8), 0

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        torch._dynamo.graph_break()
        return self.second(F.dropout(y, 0.3, self.training)) * y

    @staticmethod
    def inputs(draws: torch.Generator, rows: int) -> tuple[Tensor, ...]:
        return (torch.randn(rows, 8, generator=draws),)


#: By name, with what a script needs beside the class.
MODELS: dict[str, tuple[type, ...]] = {
    model[-1].__name__: model
    for model in (
        (Mlp,), (Images,), (Experts,), (Averaged,), (Adapter, Adapters), (Recurrent,), (Language,),
        (Views,), (Plain,), (Doubled, Custom), (Writing,), (Broken,),
    )
}  # fmt: skip

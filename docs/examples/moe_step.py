"""A training step with a host read in it: experts that get as many tokens as the router gives them.

    python3 docs/examples/moe_step.py OUTDIR

exports one step as a program: OUTDIR/program.gv and OUTDIR/inputs.pt.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Config:
    """Sizes of the model; every second block is a mixture of experts."""

    dim: int = 512
    layers: int = 12
    heads: int = 8
    ffn: int = 704
    vocab: int = 8192
    batch: int = 2
    seq: int = 256
    experts: int = 8
    top_k: int = 2
    dropout: float = 0.1


SMALL = Config(dim=32, layers=4, heads=4, ffn=44, vocab=128, batch=2, seq=16, experts=4)


class Experts(nn.Module):
    """A loop over experts; `tolist` reads on the host how many tokens each one gets."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.experts, self.top_k = c.experts, c.top_k
        self.gate = nn.Linear(c.dim, c.experts, bias=False)
        shapes = (c.dim, c.ffn), (c.dim, c.ffn), (c.ffn, c.dim)
        self.w1, self.w3, self.w2 = (
            nn.Parameter(torch.randn(c.experts, *shape) * shape[0] ** -0.5) for shape in shapes
        )

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        weight, expert = self.gate(x).float().softmax(-1).topk(self.top_k, -1)
        expert = expert.reshape(-1)
        order = expert.argsort(stable=True)
        counts = F.one_hot(expert, self.experts).sum(0).tolist()
        for count in counts:  # what tracing cannot see in a number read on the host
            torch._check(count >= 0)
            torch._check(count <= expert.numel())
        token = order // self.top_k
        parts = [
            (F.silu(part @ self.w1[i]) * (part @ self.w3[i])) @ self.w2[i]
            for i, part in enumerate(x[token].split(counts))
        ]
        y = torch.cat(parts) * weight.reshape(-1)[order].unsqueeze(1).to(x.dtype)
        return torch.zeros_like(x).index_add(0, token, y).view(shape)


class Dense(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.w1 = nn.Linear(c.dim, c.ffn, bias=False)
        self.w3 = nn.Linear(c.dim, c.ffn, bias=False)
        self.w2 = nn.Linear(c.ffn, c.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, c: Config, *, experts: bool) -> None:
        super().__init__()
        self.heads, self.dropout = c.heads, c.dropout
        self.norm1, self.norm2 = nn.RMSNorm(c.dim), nn.RMSNorm(c.dim)
        self.qkv = nn.Linear(c.dim, 3 * c.dim, bias=False)
        self.out = nn.Linear(c.dim, c.dim, bias=False)
        self.ffn = Experts(c) if experts else Dense(c)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        a = self.out(a.transpose(1, 2).reshape(b, t, d))
        x = x + F.dropout(a, self.dropout, self.training)
        return x + self.ffn(self.norm2(x))


class Moe(nn.Module):
    """Decoder of a language model; every second block is a mixture of experts."""

    def __init__(self, c: Config, *, moe: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(c.vocab, c.dim)
        self.blocks = nn.ModuleList(Block(c, experts=moe and i % 2 == 1) for i in range(c.layers))
        self.norm, self.head = nn.RMSNorm(c.dim), nn.Linear(c.dim, c.vocab, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Step(nn.Module):
    """The loss of one batch: what is exported."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        logits = self.model(ids).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make(config: Config = SMALL, device: str = "cpu", seed: int = 0) -> tuple[Step, Tensor, Tensor]:
    """The step, and one batch for it: fp32 on the CPU, bf16 on CUDA."""
    torch.manual_seed(seed)
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    step = Step(Moe(config)).to(device=device, dtype=dtype)
    return step, *batch(config, device, seed)


def batch(config: Config, device: str, seed: int) -> tuple[Tensor, Tensor]:
    """Token ids and targets, other ones for each seed."""
    generator = torch.Generator().manual_seed(seed)
    shape = (config.batch, config.seq)
    ids, targets = (torch.randint(config.vocab, shape, generator=generator) for _ in range(2))
    return ids.to(device), targets.to(device)


if __name__ == "__main__":
    import gravure

    device_name = "cuda" if torch.cuda.is_available() else "cpu"
    train_step, *data = make(SMALL, device_name)
    print(f"exported to {gravure.export_step(train_step, tuple(data), sys.argv[1])}")

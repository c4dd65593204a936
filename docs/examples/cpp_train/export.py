"""Exports a step for cpp_train, and records what eager PyTorch's training gives.

    python3 docs/examples/cpp_train/export.py FOLDER [--steps 12] [--device cpu]

FOLDER gets program.gv, inputs.pt, and losses.txt: a line a step, the loss as C writes a hexadecimal
float. Training is SGD on one batch, with dropout, from `torch.manual_seed(7)`. Losses agree where
the same kernels run: on another processor, set what cpp_train_test.sh sets for both.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import gravure
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

RATE = 0.125  # a power of two: its product is the same however it is rounded


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(32), nn.Linear(32, 8)
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.layers(x), y)


def train(step: Step, x: Tensor, y: Tensor, steps: int) -> list[float]:
    losses = []
    torch.manual_seed(7)
    for _ in range(steps):
        step.zero_grad(set_to_none=True)
        loss = step(x, y)
        loss.backward()
        with torch.no_grad():
            for parameter in step.parameters():
                parameter.sub_(parameter.grad, alpha=RATE)
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.manual_seed(0)
    step = Step().to(options.device)
    x = torch.randn(24, 16, device=options.device)
    y = torch.randint(8, (24,), device=options.device)
    gravure.export_step(copy.deepcopy(step), (x, y), options.folder)
    losses = train(step, x, y, options.steps)
    (options.folder / "losses.txt").write_text("".join(f"{loss.hex()}\n" for loss in losses))


if __name__ == "__main__":
    main()

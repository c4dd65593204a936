"""A loop of one's own: model, clipping, optimizer and schedule, each captured.

python3 docs/examples/trainers/plain_loop.py
"""

from __future__ import annotations

import gravure
import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    """A class of one's own: `compile()` of a bare nn.Sequential compiles nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return Net()


def train(*, captured: bool, steps: int = 20) -> nn.Module:
    """Part by part, in a loop that stays as it is."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    clip = nn.utils.clip_grad_norm_
    if captured:
        model.compile(backend="gravure")
        gravure.compile_optimizer(optimizer)
        clip = gravure.clip_grad_norm_
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        torch.manual_seed(step)
        x, y = torch.randn(8, 16), torch.randint(4, (8,))
        F.cross_entropy(model(x), y).backward()
        clip(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return model


def train_as_one(*, steps: int = 20) -> nn.Module:
    """The same loop as one program."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    step = gravure.compile_step(
        lambda x, y: F.cross_entropy(model(x), y),
        optimizer=optimizer,
        scheduler=scheduler,
        max_norm=1.0,
    )
    for number in range(steps):
        torch.manual_seed(number)
        x, y = torch.randn(8, 16), torch.randint(4, (8,))
        step(x, y)
    return model


if __name__ == "__main__":
    eager = train(captured=False).state_dict()
    for name, model in (("parts", train(captured=True)), ("one program", train_as_one())):
        same = all(torch.equal(eager[key], value) for key, value in model.state_dict().items())
        print(f"{name}: {'the same bits' if same else 'OTHER BITS'}")

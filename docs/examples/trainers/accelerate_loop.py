"""A loop with Accelerate: compiled before `prepare`, which wraps what it is given.

    python3 docs/examples/trainers/accelerate_loop.py

`Accelerator(dynamo_backend="gravure")` is refused: Accelerate has a closed list of names. Clipping
is `accelerator.unscale_gradients()` and Gravure's, where `accelerator.clip_grad_norm_` stood.
"""

from __future__ import annotations

import gravure
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A class of one's own: `compile()` of a bare nn.Sequential compiles nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def train(*, captured: bool, mixed_precision: str = "no") -> nn.Module:
    on_cpu = not torch.cuda.is_available()
    accelerator = Accelerator(
        gradient_accumulation_steps=2, mixed_precision=mixed_precision, cpu=on_cpu
    )
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 16)
    data = TensorDataset(torch.randn(64, 16), torch.randint(4, (64,)))
    if captured:
        model.compile(backend="gravure")
        gravure.compile_optimizer(optimizer)
    model, optimizer, scheduler, loader = accelerator.prepare(
        model, optimizer, scheduler, DataLoader(data, batch_size=8)
    )
    for _ in range(4):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                if accelerator.sync_gradients and captured:
                    accelerator.unscale_gradients()
                    gravure.clip_grad_norm_(model.parameters(), 1.0)
                elif accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    return accelerator.unwrap_model(model)


if __name__ == "__main__":
    precision = "fp16" if torch.cuda.is_available() else "no"  # with a scaler
    found = [train(captured=c, mixed_precision=precision).state_dict() for c in (False, True)]
    same = all(torch.equal(found[0][key], value) for key, value in found[1].items())
    print("the same bits" if same else "OTHER BITS")

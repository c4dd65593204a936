"""Lightning: the optimizer compiled where the module configures it, and clipping of one's own.

    python3 docs/examples/trainers/lightning_module.py

Lightning calls `optimizer.step(closure)`, and the closure runs forward, backward and clipping: it
is called first, as torch.optim's own steps do.
"""

from __future__ import annotations

from typing import Any

import gravure
import lightning
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A class of one's own: `compile()` of a bare nn.Sequential compiles nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Module(lightning.LightningModule):
    def __init__(self, *, captured: bool) -> None:
        super().__init__()
        self.captured = captured
        self.net = Net()
        if captured:
            self.net.compile(backend="gravure")

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        if self.captured:
            gravure.compile_optimizer(optimizer)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 16)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
        clip = gravure.clip_grad_norm_ if self.captured else nn.utils.clip_grad_norm_
        clip(self.parameters(), 1.0)


def train(*, captured: bool) -> nn.Module:
    lightning.seed_everything(0, verbose=False)
    data = TensorDataset(torch.randn(64, 16), torch.randint(4, (64,)))
    module = Module(captured=captured)
    trainer = lightning.Trainer(
        max_epochs=4,
        accumulate_grad_batches=2,
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(data, batch_size=8))
    return module.net


if __name__ == "__main__":
    found = [train(captured=captured).state_dict() for captured in (False, True)]
    same = all(torch.equal(found[0][key], value) for key, value in found[1].items())
    print("the same bits" if same else "OTHER BITS")

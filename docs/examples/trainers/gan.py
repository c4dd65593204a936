"""A GAN: two models, two optimizers, two compiled steps that read each other's model.

python3 docs/examples/trainers/gan.py
"""

from __future__ import annotations

import gravure
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


def train(*, captured: bool, steps: int = 12) -> list[nn.Module]:
    torch.manual_seed(0)
    maker = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
    judge = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    makers = torch.optim.Adam(maker.parameters(), lr=2e-3, betas=(0.5, 0.999))
    judges = torch.optim.Adam(judge.parameters(), lr=2e-3, betas=(0.5, 0.999))

    def judge_loss(real: Tensor, noise: Tensor) -> Tensor:
        fake = maker(noise).detach()
        return F.softplus(-judge(real)).mean() + F.softplus(judge(fake)).mean()

    def maker_loss(noise: Tensor) -> Tensor:
        return F.softplus(-judge(maker(noise))).mean()

    if captured:
        judge_step = gravure.compile_step(judge_loss, optimizer=judges)
        maker_step = gravure.compile_step(maker_loss, optimizer=makers)
    for step in range(steps):
        torch.manual_seed(step)
        real, noise = torch.randn(16, 8), torch.randn(16, 4)
        if captured:
            judge_step(real, noise)
            # The maker's loss leaves gradients in the judge, which its own step is not for.
            judge.requires_grad_(False)
            maker_step(noise)
            judge.requires_grad_(True)
            continue
        judge_loss(real, noise).backward()
        judges.step()
        judges.zero_grad()
        judge.requires_grad_(False)
        maker_loss(noise).backward()
        judge.requires_grad_(True)
        makers.step()
        makers.zero_grad()
    return [maker, judge]


if __name__ == "__main__":
    eager, ours = train(captured=False), train(captured=True)
    pairs = zip(eager, ours, strict=True)
    same = all(
        torch.equal(a.state_dict()[k], v) for a, b in pairs for k, v in b.state_dict().items()
    )
    print("the same bits" if same else "OTHER BITS")

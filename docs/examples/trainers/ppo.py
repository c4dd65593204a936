"""Rollouts as in PPO: the policy acts without gradients, then learns in small batches for a while.

python3 docs/examples/trainers/ppo.py
"""

from __future__ import annotations

import gravure
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.distributions.utils import logits_to_probs


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.act, self.value = nn.Linear(32, 3), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.body(x)
        return F.log_softmax(self.act(y), -1), self.value(y).squeeze(-1)


def train(*, captured: bool, rounds: int = 3) -> nn.Module:
    torch.manual_seed(0)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3, eps=1e-5)
    batches = rounds * 2 * 4
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=batches)

    def loss(x: Tensor, action: Tensor, old: Tensor, advantage: Tensor, returns: Tensor) -> Tensor:
        logs, value = policy(x)
        chosen = logs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        ratio = (chosen - old).exp()
        clipped = ratio.clamp(0.8, 1.2)
        gain = torch.minimum(ratio * advantage, clipped * advantage).mean()
        entropy = -(logits_to_probs(logs) * logs).sum(-1).mean()
        return -gain + 0.5 * F.mse_loss(value, returns) - 0.01 * entropy

    if captured:
        step = gravure.compile_step(loss, optimizer=optimizer, scheduler=scheduler, max_norm=0.5)
    for number in range(rounds):
        torch.manual_seed(number)
        x = torch.randn(64, 6)
        with torch.no_grad():  # the rollout
            logs, value = policy(x)
            action = torch.multinomial(logs.exp(), 1).squeeze(-1)
            old = logs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
            returns = x.sum(-1) * (action - 1)
            advantage = returns - value
        for _ in range(2):
            for rows in torch.randperm(64).split(16):
                batch = [t[rows] for t in (x, action, old, advantage, returns)]
                if captured:
                    step(*batch)
                    continue
                loss(*batch).backward()
                nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
    return policy


if __name__ == "__main__":
    eager, ours = (train(captured=captured).state_dict() for captured in (False, True))
    same = all(torch.equal(eager[key], value) for key, value in ours.items())
    print("the same bits" if same else "OTHER BITS")

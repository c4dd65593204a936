"""On a GPU: the option `shadow` says nothing of steps that are right, and names the operator where
a value was read on the host while it was captured.

    python3 tests/cuda/shadow.py
"""

from __future__ import annotations

import logging
from typing import Any

import gravure
import torch
import torch.nn as nn
from torch import Tensor

_scale = [1.0]


@torch.library.custom_op("gravure_gpu::scaled", mutates_args=())
def scaled(x: Tensor) -> Tensor:
    """A number of Python's, which a graph bakes in."""
    return x * _scale[0]


scaled.register_fake(torch.empty_like)
scaled.register_autograd(lambda ctx, grad: grad * 2)


class Model(nn.Module):
    def __init__(self, *, wrong: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)
        self.norm, self.drop = nn.BatchNorm1d(64), nn.Dropout(0.1)
        self.wrong = wrong

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(self.norm(self.first(x)).relu())
        return self.last(scaled(y) if self.wrong else y)


class Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "[shadow-" in record.getMessage():
            self.lines.append(record.getMessage())


def train(way: str, *, wrong: bool) -> tuple[list[str], dict[str, Any]]:
    said = Said()
    logging.getLogger("gravure").addHandler(said)
    torch.manual_seed(0)
    model = Model(wrong=wrong).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def loss(x: Tensor) -> Tensor:
        return model(x).square().mean()

    options = {"shadow": 3}
    if way == "compile":
        step = torch.compile(loss, backend="gravure", options=options)
    else:
        step = gravure.compile_step(loss, optimizer=optimizer, options=options)
    for i in range(15):
        _scale[0] = 1.0 + i
        value = step(torch.randn(32, 64, device="cuda"))
        if way == "compile":
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
    logging.getLogger("gravure").removeHandler(said)
    return said.lines, gravure.report().graphs[-1].programs[0].stats


def main() -> None:
    for way in ("compile", "step"):
        lines, stats = train(way, wrong=False)
        print(way, "right:", stats["compared"], "compared,", stats["replays"], "replays", lines)
        assert not lines and stats["compared"] and stats["replays"]
        torch._dynamo.reset()
        lines, stats = train(way, wrong=True)
        print(way, "wrong:", lines)
        assert any("gravure_gpu::scaled at shadow.py:" in line for line in lines)
        torch._dynamo.reset()
    print("done")


if __name__ == "__main__":
    main()

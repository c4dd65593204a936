"""Steps whose graph is one node of autograd's, made by the library: how that is seen."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gravure
import torch
import torch.nn as nn
from running import bits
from torch import Tensor
from training import Mlp, compiled, rows, same_as_eager, state_of

NODE = "GravureBackward"


def is_native(result: Any) -> bool:
    """Whether the node behind some result is the library's."""
    found = [t.grad_fn for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, Tensor)]
    return any(node is not None and node.name() == NODE for node in found)


class Seen:
    """A training step that notes how its forward came to autograd."""

    def __init__(self) -> None:
        self.native: list[bool] = []

    def __call__(self, model: Any, optimizer: Any, batch: tuple[Any, ...]) -> Any:
        optimizer.zero_grad()
        result = model(*batch)
        if not isinstance(model, nn.Module) or hasattr(model, "_orig_mod"):
            self.native.append(is_native(result))
        tensors = [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, Tensor)]
        loss = sum(t.float().square().mean() for t in tensors if t.requires_grad)
        loss.backward()
        optimizer.step()
        return loss.detach(), result


def trains(model: nn.Module, batches: Any = rows, *, native: bool, **how: Any) -> gravure.Report:
    """Every step is eager's in bits; all behind the first are native, or none is."""
    step = Seen()
    report = same_as_eager(model, batches, step, steps=7, **how)
    assert step.native[1:] == [native] * 6
    return report


def like_aot(model: nn.Module, step: Any) -> None:
    twin = copy.deepcopy(model)
    sides = [
        (each, torch.compile(each, backend=backend), torch.optim.SGD(each.parameters(), 0.05))
        for each, backend in ((model, "gravure"), (twin, "aot_eager"))
    ]
    for i in range(6):
        found = []
        for each, call, optimizer in sides:
            torch.manual_seed(i)
            found.append([list(map(bits, step(call, optimizer, rows(i)))), state_of(each)])
        assert found[0] == found[1], i


def warm(model: nn.Module, x: Tensor, steps: int = 4, **how: Any) -> Callable[..., Any]:
    """`model`, compiled and called until its next call is native."""
    torch._dynamo.reset()
    call = compiled(model, **how)
    for _ in range(steps):
        result = call(x)
        first = result if isinstance(result, Tensor) else result[0]
        first.sum().backward()
        model.zero_grad()
        x.grad = None
    assert is_native(call(x))
    return call


class Parts(Mlp):
    """Splits its rows by sizes that are read on the host, which its backward needs, too."""

    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        parts = super().forward(x).exp().split(sizes.tolist())
        return torch.stack([(part * (i + 1)).sum() for i, part in enumerate(parts)])


def parts(i: int) -> tuple[Tensor, Tensor]:
    return torch.randn(6, 8), torch.tensor([1 + i % 3, 2, 3 - i % 3])


class Saves(nn.Module):
    """Saves an argument, a parameter and its own result."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale).exp()

"""An operator that fails in a step: eager's type of error, its words, and where it stands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gravure
import pytest
import torch
from running import DEVICES, bits
from torch import Tensor, nn

WAYS = "backend", "compile_step", "load"


class Looked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))

    def forward(self, ids: Tensor) -> Tensor:
        return nn.functional.embedding(ids, self.weight).square().sum()


class Factored(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.cholesky_ex(x * self.weight, check_errors=True).L.sum()


class Divided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, counts: Tensor) -> Tensor:
        first, second = (self.weight * 2).split(counts.tolist())
        return first.sum() - second.sum()


Step = Callable[[Tensor], tuple[Tensor, Tensor]]


def step_of(way: str, module: nn.Module, example: Tensor, folder: Path) -> Step:
    """Loss, and the gradient of `module.weight`."""
    torch._dynamo.reset()
    if way == "load":
        gravure.export_step(module, (example,), folder / "step")
        program = gravure.load(folder / "step", "cuda" if example.is_cuda else "host")
        program.bind({"weight": module.weight.detach()})

        def loaded(x: Tensor) -> tuple[Tensor, Tensor]:
            loss, gradient = program.run((x,))
            return loss, gradient

        return loaded
    compiled = torch.compile(module, backend="gravure") if way == "backend" else None
    whole = gravure.compile_step(module) if way == "compile_step" else None

    def call(x: Tensor) -> tuple[Tensor, Tensor]:
        module.weight.grad = None
        if whole is not None:
            loss = whole(x)
        else:
            assert compiled is not None
            loss = compiled(x)
            loss.backward()
        assert module.weight.grad is not None
        return loss.detach(), module.weight.grad

    return call


def eager_step(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    loss = module(x)
    (gradient,) = torch.autograd.grad(loss, module.weight)
    return loss.detach(), gradient


CASES = {
    "index": (Looked, torch.tensor([1, 2]), torch.tensor([1, 7]), "aten::embedding"),
    "not definite": (Factored, torch.eye(3) * 2, -torch.eye(3), "aten::linalg_cholesky_ex"),
    # Dynamo has its own check before the split.
    "sizes": (Divided, torch.tensor([2, 4]), torch.tensor([2, 5]), "aten::_assert_scalar"),
}
# A kernel that fails takes the process with it.
FATAL = [("cuda", "index")]
WHERE = [(device, case) for device in DEVICES for case in CASES if (device, case) not in FATAL]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("device", "case"), WHERE)
@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_an_operator_that_fails(way: str, device: str, case: str, tmp_path: Path) -> None:
    make, good, bad, operator = CASES[case]
    module, good, bad = make().to(device), good.to(device), bad.to(device)
    with pytest.raises(Exception) as eager:  # noqa: PT011  whatever it is
        module(bad)
    call = step_of(way, module, good, tmp_path)
    call(good)
    # While it is warmed up, once it is captured, and again.
    for _ in range(4):
        with pytest.raises(type(eager.value)) as failed:
            call(bad)
        assert type(failed.value) is type(eager.value)
        assert operator in str(failed.value)
        assert "test_run_errors.py:" in str(failed.value)
        # The step is none the worse for it.
        assert [*map(bits, call(good))] == [*map(bits, eager_step(module, good))]

"""compile_step with codegen="inductor": forward, loss and backward as one region."""

from __future__ import annotations

import copy
from typing import Any

import gravure
import models
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from gravure.graphs import undivided
from region_compiler import RegionCompiler
from running import need_library
from torch import Tensor
from training import Checkpointed, Mlp, Net, Normed, images, rows, same_steps

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

UNDIVIDED = {"codegen": "inductor", "regions": "undivided", "poison": True}


class Constants(nn.Module):
    """A tensor constant in the forward, and another one in the backward."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * torch.tensor([2.0, 3.0])

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * torch.tensor([5.0, 7.0])

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.Scaled.apply(self.first(x))


class Written(nn.Module):
    """A buffer whose old value the backward needs, and that the forward then replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        y = h * self.scale.clone()
        with torch.no_grad():
            self.scale.mul_(0.5).add_(h.detach().mean(0))
        return y


class Loss(nn.Module):
    """The loss, of any shape of one number, then all that the model returned."""

    def __init__(self, model: nn.Module, shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.model, self.shape = model, shape

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.model(x)
        return F.silu(y).square().mean().reshape(self.shape), y, y.t() if y.dim() == 2 else y


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (Loss(Mlp(0.15)), rows),
        (Loss(Mlp(), (1,)), rows),
        (Loss(Net()), rows),
        (Loss(Normed()), images),
        (Loss(Checkpointed(2)), rows),
        (Loss(Constants()), rows),
        (Loss(Written()), rows),
    ],
    ids=["dropout", "one-loss", "statistics", "images", "checkpointed", "constants", "written"],
)
def test_one_region_changes_no_bit(
    region_compiler: RegionCompiler, model: nn.Module, batch: Any
) -> None:
    ours = copy.deepcopy(model)
    step = gravure.compile_step(ours, options=UNDIVIDED)
    same_steps(step, ours, models.Model(model, batch(0), model), 6)
    (graph,) = [g for g in gravure.report().graphs if g.label.startswith("Loss")]
    assert set(graph.programs[0].partitions["step"]) == {"captured"}
    # A checkpointed draw is ATen's, and on the CPU reads the random state on the host.
    assert len(region_compiler.operators) == 1 or isinstance(model.model, Checkpointed)


def test_it_is_chosen_for_small_steps(
    region_compiler: RegionCompiler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def regions_of(limit: int, **options: str) -> int:
        monkeypatch.setattr(undivided, "_FEW", limit)
        torch._dynamo.reset()
        region_compiler.targets.clear()
        model = Loss(Mlp())
        gravure.compile_step(model, options={"codegen": "inductor", **options})(*rows(0))
        return len(region_compiler.operators)

    assert regions_of(1 << 30) == 1
    # The forward computes 5 rows of 16, 16, 4, 4, 4 numbers, and the loss twice; views are none.
    computed = 4 * (5 * (16 + 16 + 4 + 4 + 4) + 2)
    assert [regions_of(limit) for limit in (computed - 1, computed)] == [2, 1]
    assert regions_of(0) == 2
    assert regions_of(0, regions="undivided") == 1
    assert regions_of(1 << 30, regions="divided") == 2


def test_only_a_step_is_undivided() -> None:
    with pytest.raises(ValueError, match="expected 'auto' or 'divided' or 'undivided', found 'jo"):
        gravure.compile_step(lambda: None, options={"regions": "joint"})
    with pytest.raises(ValueError, match="did you mean 'regions'"):
        gravure.compile_step(lambda: None, options={"regon": "divided"})
    options = {"codegen": "inductor", "regions": "undivided"}
    with pytest.raises(ValueError, match="'regions': .*for compile_step"):
        torch.compile(Mlp(), backend="gravure", options=options)

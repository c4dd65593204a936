"""Random numbers of Inductor's own on a GPU: captured, anew in each replay, and no kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable

import gravure
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from running import bits, need_library
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint
from training import leaves, replays, state_of, with_gradients

if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)
need_library()
pytestmark = pytest.mark.usefixtures("fresh")

INDUCTOR = {"codegen": "inductor"}
FUSED = INDUCTOR | {"fused_random": True}


class Block(nn.Module):
    """Two dropouts and noise, the block checkpointed or not."""

    def __init__(self, *, again: bool = False) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)
        self.again = again

    def _inner(self, x: Tensor) -> Tensor:
        h = F.dropout(F.gelu(self.up(x)), 0.3, self.training)
        h = h + 0.1 * torch.randn_like(h)
        return x + F.dropout(self.down(h), 0.5, self.training)

    def forward(self, x: Tensor) -> Tensor:
        if self.again:
            return checkpoint(self._inner, x, use_reentrant=False)
        return self._inner(x)


def batch() -> Tensor:
    return torch.randn(32, 64, device="cuda", generator=torch.Generator("cuda").manual_seed(1))


@pytest.mark.parametrize("way", ["backend", "divided", "undivided"])
@pytest.mark.parametrize("again", [False, True])
def test_captured_draws_are_those_of_the_same_kernels_uncaptured(way: str, again: bool) -> None:
    """Every step draws anew, a replay moves the generator as far as an uncaptured step, and a seed
    repeats a step."""
    models = [Block(again=again).cuda()]
    models.append(copy.deepcopy(models[0]))
    wanted = FUSED, FUSED | {"uncaptured": True}
    calls = [with_gradients(*each) for each in zip(models, (way, way), wanted, strict=True)]
    x, seen = batch(), []
    for seed in (3, None, None, None, None, 3, None):
        if seed is not None:
            torch.manual_seed(seed)
        before, found = torch.cuda.get_rng_state(), []
        for model, call in zip(models, calls, strict=True):
            torch.cuda.set_rng_state(before)
            model.zero_grad()
            result = leaves(call(x))
            found.append((result, state_of(model), bits(torch.cuda.get_rng_state())))
        assert found[0] == found[1]
        seen.append(found[0])
    assert seen[5:] == seen[:2] and len({str(each) for each in seen}) == 5
    report = gravure.report()
    graphs = report.graphs
    states = {s for p in graphs[0].programs for v in p.partitions.values() for s in v}
    assert states == {"captured"} and replays(report) > 0
    assert not graphs[0].programs[0].remarks


def dropped(x: Tensor) -> Tensor:
    return F.dropout(x.exp(), 0.5)


def checkpointed(x: Tensor) -> Tensor:
    return checkpoint(dropped, x, use_reentrant=False).sin().exp() - 1


@pytest.mark.parametrize("fn", [dropped, checkpointed])
def test_a_backward_has_the_mask_of_its_forward(fn: Callable[[Tensor], Tensor]) -> None:
    """Also of several calls in flight; and a checkpointed block needs no generators of its own."""
    call = torch.compile(fn, backend="gravure", options=FUSED | {"on_missed": "raise"})
    for together in (1, 1, 1, 1, 3, 3, 3):
        xs = [torch.rand(64, 64, device="cuda", requires_grad=True) for _ in range(together)]
        results = [call(x) for x in xs]
        assert len({bits(y == 0) for y in results}) == together
        for x, y in zip(xs, results, strict=True):
            (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
            assert bool((y == 0).any()) and bool(((gradient == 0) == (y == 0)).all())
    assert replays(gravure.report())
    assert results[-1].grad_fn.name() == "GravureBackward"


def kernels(step: Callable[[Tensor], Tensor], x: Tensor) -> list[str]:
    for _ in range(5):
        step(x)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        step(x)
        torch.cuda.synchronize()
    return [e.name for e in found.events() if e.device_type == torch.autograd.DeviceType.CUDA]


def test_a_dropout_is_no_kernel_of_its_own() -> None:
    x, counts = batch(), []
    for options in (INDUCTOR, FUSED):
        torch._dynamo.reset()
        counts.append(kernels(with_gradients(Block().cuda(), "divided", options), x))
    separate, fused = counts
    assert len(fused) < len(separate), counts
    # Three draws of ATen's; all seeds are one. Inductor names its kernels for what they fuse.
    atens = [name for name in fused if "at::native" in name]
    assert sum("distribution" in name or "dropout" in name for name in atens) == 1, fused

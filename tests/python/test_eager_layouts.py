"""While a graph is traced, results are said to lie in memory as eager's kernels lay them.

PyTorch's own stand-ins say otherwise of some operators. A view that is traced so fails in the
program, where eager trains: doge, qwen3_next, qwen3_5_text, qwen3_5_moe_text and olmo_hybrid of
transformers did, whose gates go through softplus.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import gravure
import pytest
import torch
from gravure.torch_api.eager_layouts import eager_layouts
from gravure.torch_api.private_names import FakeTensorMode
from running import DEVICES, bits, need_library
from torch import Tensor, nn

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

ATEN = torch.ops.aten
CPU = ["cpu"]

TWO: dict[Any, tuple[Any, ...]] = {  # operators of two tensors, and what they take besides
    ATEN.softplus_backward.default: (1, 20),
    ATEN.hardswish_backward.default: (),
    ATEN.hardsigmoid_backward.default: (),
    ATEN.hardtanh_backward.default: (-1, 1),
    ATEN.logit_backward.default: (1e-6,),
    ATEN.threshold_backward.default: (0,),
    ATEN.leaky_relu_backward.default: (0.1, False),
    ATEN.xlogy.Tensor: (),
    ATEN.special_xlog1py.default: (),
    ATEN.logaddexp.default: (),
    ATEN.logaddexp2.default: (),
    ATEN.logical_or.default: (),
    ATEN.logical_and.default: (),
    ATEN.logical_xor.default: (),
    ATEN.heaviside.default: (),
    ATEN.copysign.Tensor: (),
    ATEN.floor_divide.default: (),
    ATEN._log_softmax_backward_data.default: (1, torch.float32),
}


@pytest.fixture
def traced() -> Iterator[None]:
    with eager_layouts():
        yield


def layouts() -> Iterator[Tensor]:
    yield torch.rand(3, 4, 5)
    yield torch.rand(3, 5, 4).transpose(1, 2)
    yield torch.rand(4, 3, 5).transpose(0, 1)
    yield torch.rand(5, 4, 3).permute(2, 1, 0)
    yield torch.rand(3, 8, 5)[:, ::2]
    yield torch.rand(3, 4, 1).expand(3, 4, 5)


def images() -> Iterator[Tensor]:
    yield torch.rand(2, 3, 4, 5)
    yield torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    yield torch.rand(2, 4, 3, 5).transpose(1, 2)
    yield torch.rand(5, 4, 3, 2).permute(3, 2, 1, 0)


def check(op: Any, *args: Any, devices: Sequence[str] = DEVICES, **kwargs: Any) -> None:
    for device in devices:
        moved = [a.to(device) if isinstance(a, Tensor) else a for a in args]
        check_here(op, *moved, **kwargs)


def check_here(op: Any, *args: Any, **kwargs: Any) -> None:
    real = op(*args, **kwargs)
    mode = FakeTensorMode()
    taken = [mode.from_tensor(a) if isinstance(a, Tensor) else a for a in args]
    with mode:
        fake = op(*taken, **kwargs)
    pairs = zip(real, fake, strict=True) if isinstance(real, tuple) else [(real, fake)]
    for one, other in pairs:
        if one is None or other is None:  # nobody asked for it
            continue
        assert one.shape == other.shape and one.dtype == other.dtype
        assert one.stride() == other.stride(), [a.stride() for a in args if isinstance(a, Tensor)]


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("op", TWO, ids=str)
def test_of_two_tensors(op: Any) -> None:
    for first, second in itertools.product(layouts(), layouts()):
        check(op, first, second, *TWO[op])
    if "backward" not in str(op):
        for second in layouts():
            check(op, torch.rand(5, 4).t(), second)
            check(op, second, torch.rand(5, 1, 3).permute(2, 1, 0))


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_of_a_rounded_division(mode: str) -> None:
    for first, second in itertools.product(layouts(), layouts()):
        check(ATEN.div.Tensor_mode, first, second, rounding_mode=mode)
    check(ATEN.div.Tensor_mode, torch.rand(5, 4).t(), torch.tensor(0.5), rounding_mode=mode)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("name", ["mse_loss", "smooth_l1_loss", "huber_loss"])
def test_of_losses(name: str) -> None:
    op = getattr(ATEN, f"{name}_backward").default
    more = (0,) if name == "mse_loss" else (0, 1.0)
    for values in itertools.product(*[[*layouts()][:4]] * 3):
        check(op, *values, *more)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("affine", [True, False])
def test_of_norms(affine: bool) -> None:
    for x in (*layouts(), *images()):
        width = x.shape[1]
        weight = torch.ones(width) if affine else None
        stats = torch.zeros(width), torch.ones(width)
        norm = ATEN.native_batch_norm.default
        check(norm, x, weight, weight, *stats, True, 0.1, 1e-5, devices=CPU)
        kept = torch.zeros(x.shape[:-1] + (1,)), torch.ones(x.shape[:-1] + (1,))
        scale = torch.ones(5) if affine else None
        for gradient in layouts() if x.dim() == 3 else images():
            rest = *stats, *stats, True, 1e-5, [True, affine, affine]
            norm = ATEN.native_batch_norm_backward.default
            check(norm, gradient, x, weight, *rest, devices=CPU)
            if affine:
                norm = ATEN.native_layer_norm_backward.default
                check(norm, gradient, x, [5], *kept, scale, scale, [True, affine, affine])


def test_others_have_what_pytorch_says() -> None:
    """Other backends, before and behind a compilation of ours."""
    gradient, x = torch.rand(2, 3, 4).transpose(1, 2), torch.rand(2, 4, 3)

    def said() -> tuple[int, ...]:
        mode = FakeTensorMode()
        with mode:
            g, y = mode.from_tensor(gradient), mode.from_tensor(x)
            return ATEN.softplus_backward.default(g, y, 1, 20).stride()

    before = said()
    with eager_layouts():
        assert said() == ATEN.softplus_backward.default(gradient, x, 1, 20).stride()
    assert said() == before


class Gated(nn.Module):
    """As a linear attention's gate: what follows softplus is transposed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inside = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        gate = nn.functional.softplus(self.inside(x)).transpose(1, 2)
        return (gate * gate.cumsum(-1)).square().mean()


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_gate_trains_and_is_captured(dynamic: bool) -> None:
    models = Gated(), Gated()
    compiled = torch.compile(models[1], backend="gravure", dynamic=dynamic)
    for i in range(6):
        x = torch.randn(3, 5, 6, generator=torch.Generator().manual_seed(i))
        losses = models[0](x), compiled(x)
        for loss in losses:
            loss.backward()
        assert bits(losses[0]) == bits(losses[1])
        eager, ours = ([bits(p.grad) for p in model.parameters()] for model in models)
        assert eager == ours
        for model in models:
            model.zero_grad()
    (graph,) = gravure.report().graphs
    assert not graph.failure
    assert graph.programs[0].stats["replays"] > 0

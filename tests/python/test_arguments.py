"""Operators and their arguments: each trap of importing FX graphs as a small case."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from running import bits, exported, run, same_as_eager, statements, step_of, weight
from torch import Tensor
from torch.utils.checkpoint import checkpoint


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_numbers_in_tensor_slots_and_numbers_read_on_the_host(tmp_path: Path) -> None:
    w = weight(6)

    def loss(x: Tensor, n: Tensor) -> Tensor:
        k = n.item()
        y = x.half() * 0.5 + 2
        z = (y.float() * w) * k + (x * k).sum() / (k + 1)
        return z.sum() + torch.ones(k * 2 + 1).sum() // 2

    same_as_eager(loss, (torch.randn(6), torch.tensor(3)), tmp_path)


def test_lists_of_numbers_read_on_the_host(tmp_path: Path) -> None:
    w = weight(8, 2)

    def loss(x: Tensor, sizes: Tensor) -> Tensor:
        parts = (x * w).split(sizes.tolist())
        return sum(((i + 1) * part.sin()).sum() for i, part in enumerate(parts))

    entries, state = exported(loss, (torch.randn(8, 2), torch.tensor([3, 1, 4])), tmp_path)
    split = statements(entries["step"], "aten::split_with_sizes")
    assert len(split) == 1 and len(split[0].outputs) == 3
    assert all("*" in kind for _, kind in split[0].outputs)
    same_as_eager(loss, (torch.randn(8, 2), torch.tensor([3, 1, 4])), tmp_path)
    state["step"]["sizes"] = torch.tensor([0, 6, 2])
    found = run(entries, state)
    loss_ = loss(state["step"]["x"], state["step"]["sizes"])
    assert bits(found.loss) == bits(loss_)


def test_masks_and_lists_with_none(tmp_path: Path) -> None:
    w = weight(4, 5)

    def loss(x: Tensor, mask: Tensor, index: Tensor) -> Tensor:
        y = x * w
        return y[:, index].sum() + y[mask].square().sum() + y.flip([0, 1])[1:, None].max(0)[0].sum()

    args = torch.randn(4, 5), torch.rand(4, 5) > 0.5, torch.tensor([0, 3])
    step = step_of(loss, args, tmp_path)
    assert [None] == [
        a for s in statements(step, "aten::index.Tensor") for a in s.args[1] if a is None
    ]
    same_as_eager(loss, args, tmp_path)


def test_constants_of_every_kind(tmp_path: Path) -> None:
    w = weight(2, 3, 4, 4)

    def loss(x: Tensor) -> Tensor:
        y = (x * w).to(torch.float64).contiguous(memory_format=torch.channels_last)
        y = y.masked_fill(x > 1, -math.inf).clamp(min=-2.0)
        y = torch.nan_to_num(y, nan=0.5, posinf=math.inf) + y.new_full((1,), 1e-5)
        z = torch.arange(4, device=torch.device("cpu")) + torch.empty(4).fill_(math.nan).isnan()
        c = torch.view_as_real(y.to(torch.complex64) * (1.5 - 2j)).sum(-1)
        b = y.to(torch.float32).view(torch.int32).detach()
        return (y + z).sum() + c.sum() + F.gelu(y, approximate="tanh").sum() + b.sum() * 0

    same_as_eager(loss, (torch.randn(2, 3, 4, 4),), tmp_path)
    step = step_of(loss, (torch.randn(2, 3, 4, 4),), tmp_path)
    assert statements(step, "aten::view.dtype")[0].args[1] is torch.int32
    fill = statements(step, "aten::masked_fill.Scalar")[0]
    assert fill.args[2] == -math.inf
    arange = step.body[[s.op.startswith("aten::arange") for s in step.body].index(True)]
    assert arange.kwargs["dtype"] is torch.int64
    assert arange.kwargs["device"] == torch.device("cpu")


def test_factories_carry_their_dtype(tmp_path: Path) -> None:
    w = weight(3)
    torch.set_default_dtype(torch.float64)
    try:
        step = step_of(lambda x: (x * w * torch.ones(3)).sum(), (torch.randn(3),), tmp_path)
    finally:
        torch.set_default_dtype(torch.float32)
    assert statements(step, "aten::ones")[0].kwargs["dtype"] is torch.float64


def test_bool_list_and_undefined_outputs(tmp_path: Path) -> None:
    conv, norm = nn.Conv2d(2, 3, 3), nn.LayerNorm([3, 4, 4], elementwise_affine=False)

    def loss(x: Tensor) -> Tensor:
        return norm(conv(x)).square().sum()

    step = step_of(loss, (torch.randn(1, 2, 6, 6),), tmp_path)
    backward = statements(step, "aten::convolution_backward")[0]
    assert backward.args[-1] == [False, True, True]
    assert backward.outputs[0][1] == "Tensor"  # the gradient that nobody wants
    same_as_eager(loss, (torch.randn(1, 2, 6, 6),), tmp_path)


@pytest.mark.parametrize("p", [0.15, 0.3, 0.45, 0.76])
def test_dropout_is_eagers(p: float, tmp_path: Path) -> None:
    w = weight(500)
    same_as_eager(lambda x: F.dropout(x * w, p).sin().sum(), (torch.randn(500),), tmp_path)


@pytest.mark.parametrize("drop", [F.dropout, F.alpha_dropout, F.dropout2d])
def test_dropout_of_a_permuted_tensor(drop: Any, tmp_path: Path) -> None:
    w = weight(6, 1, 5, 7)

    def loss(x: Tensor) -> Tensor:
        return drop((x * w).permute(2, 3, 0, 1), 0.4, training=True).sin().sum()

    same_as_eager(loss, (torch.randn(6, 3, 5, 7),), tmp_path)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_dropout_between_recurrent_layers(kind: Any, tmp_path: Path) -> None:
    model = kind(4, 5, num_layers=3, dropout=0.4)
    same_as_eager(lambda x: model(x)[0].square().sum(), (torch.randn(6, 2, 4),), tmp_path)


def test_upsampling_is_eagers(tmp_path: Path) -> None:
    w = weight(1, 2, 5, 5)

    def loss(x: Tensor) -> Tensor:
        y = F.interpolate(x * w, scale_factor=2.3, mode="bilinear") + F.interpolate(
            x * w, size=(11, 11)
        )
        return y.sin().sum()

    same_as_eager(loss, (torch.randn(1, 2, 5, 5),), tmp_path)


def test_checkpoint_with_a_random_single_output(tmp_path: Path) -> None:
    w = weight(50)

    def block(x: Tensor) -> Tensor:
        return (x * w * torch.rand_like(x)).sin()

    def loss(x: Tensor) -> Tensor:
        return checkpoint(
            block, checkpoint(block, x, use_reentrant=False), use_reentrant=False
        ).sum()

    same_as_eager(loss, (torch.randn(50),), tmp_path)


def test_autocast(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1))

    def loss(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model(x)
        return y.float().square().mean()

    same_as_eager(loss, (torch.randn(5, 8),), tmp_path)


def test_a_draw_that_nobody_uses_still_advances_the_state(tmp_path: Path) -> None:
    w = weight(5)

    def loss(x: Tensor) -> Tensor:
        F.dropout(x * w, 0.5)
        torch.rand(3)
        return (F.dropout(x, 0.3) * w).sum()

    same_as_eager(loss, (torch.randn(5),), tmp_path)


def test_parametrization_writes_its_buffers(tmp_path: Path) -> None:
    model = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))
    same_as_eager(lambda x: model(x).square().sum(), (torch.randn(2, 4),), tmp_path)


def test_ordered_effects(tmp_path: Path) -> None:
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

    @torch.library.custom_op("gravure_test::logged", mutates_args=())
    def logged(x: Tensor) -> Tensor:
        return x.clone()

    logged.register_fake(torch.empty_like)
    _register_effectful_op(torch.ops.gravure_test.logged.default, _EffectType.ORDERED)
    w = weight(3)

    def loss(x: Tensor) -> Tensor:
        return (w * logged(logged(x))).sum()

    step = step_of(loss, (torch.randn(3),), tmp_path)
    assert len(statements(step, "gravure_test::logged")) == 2
    same_as_eager(loss, (torch.randn(3),), tmp_path)


# ---- higher-order operators


def test_cond(tmp_path: Path) -> None:
    w = weight(3)

    def loss(x: Tensor) -> Tensor:
        y = x * w
        return torch.cond(y.sum() > 0, lambda y: y.sin() * 2, lambda y: y.cos(), (y,)).sum()

    for sign in (1.0, -1.0):
        x = sign * w.detach().sign()
        found = same_as_eager(loss, (x,), tmp_path / str(sign))
        y = (x * w).detach().requires_grad_()
        (y.sin() * 2 if sign > 0 else y.cos()).sum().backward()
        assert bits(found.gradients["w"]) == bits(y.grad * x)
    step = step_of(loss, (torch.ones(3),), tmp_path)
    branches = statements(step, "prim::If")
    assert len(branches) == 2 and all(len(s.blocks) == 2 for s in branches)


def test_nested_compile_region_is_inlined(tmp_path: Path) -> None:
    w = weight(3)

    @torch.compiler.nested_compile_region
    def region(x: Tensor) -> Tensor:
        return (x * w).sin()

    same_as_eager(lambda x: region(region(x)).sum(), (torch.randn(3),), tmp_path)


def test_prims_are_written_as_aten(tmp_path: Path) -> None:
    prims, w = torch.ops.prims, weight(3, 4)

    def loss(x: Tensor, mask: Tensor) -> Tensor:
        wide = prims.convert_element_type(mask, torch.float64)
        y = (x * w).double() * prims.where(mask, prims.rev(wide, [0]), wide + 2)
        return (y.t() @ prims.clone(wide)).sum()

    step = step_of(loss, (torch.randn(3, 4), torch.rand(3, 4) > 0.5), tmp_path / "text")
    assert statements(step, "aten::_to_copy")
    assert "prims::" not in (tmp_path / "text" / "program.gv").read_text()
    same_as_eager(loss, (torch.randn(3, 4), torch.rand(3, 4) > 0.5), tmp_path)

"""Inductor's kernels, operators in Python and optimizers on a GPU: captured, and right in bits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from running import bits, need_library
from torch import Tensor
from training import leaves, replays, state_of

if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)
need_library()
pytestmark = pytest.mark.usefixtures("fresh")

INDUCTOR = {"codegen": "inductor"}


class Block(nn.Module):
    """Attention, a norm, dropout, a buffer that is written; with `reads`, a number read back."""

    def __init__(self, dropout: float = 0.0, *, reads: bool = False) -> None:
        super().__init__()
        kind: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
        self.qkv, self.out = nn.Linear(64, 192, **kind), nn.Linear(64, 64, **kind)
        self.up, self.down = nn.Linear(64, 256, **kind), nn.Linear(256, 64, **kind)
        self.norm = nn.LayerNorm(64, **kind)
        self.register_buffer("mean", torch.zeros(64, device="cuda"))
        self.dropout, self.reads = dropout, reads

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(self.out(a.transpose(1, 2).reshape(b, t, d)), self.dropout, self.training)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.float().mean((0, 1)))
        if self.reads:
            n = (x.detach().abs() > 1).sum().clamp(1, 2).item()
            torch._check(n >= 1)
            torch._check(n <= 2)
            x = x * n
        return x + self.down(F.gelu(self.up(x)))


def batch(seed: int) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn(2, 32, 64, device="cuda", dtype=torch.bfloat16)


def loss_of(model: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: model(x).float().square().mean()


def compiled(model: nn.Module, way: str, options: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    if way == "step":
        return gravure.compile_step(loss_of(model), options=options)
    options = options | {"on_missed": "raise"}
    loss = torch.compile(loss_of(model), backend="gravure", fullgraph=True, options=options)

    def step(x: Tensor) -> Tensor:
        value = loss(x)
        value.backward()
        return value.detach()

    return step


def distance(ours: nn.Module, theirs: nn.Module) -> float:
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    found = [(p.grad.float() - q.grad.float()).norm() / q.grad.float().norm() for p, q in pairs]
    return max(float(f) for f in found)


@pytest.mark.parametrize("way", ["backend", "step"])
@pytest.mark.parametrize("model", [{}, {"dropout": 0.1}, {"reads": True}], ids=str)
def test_captured_kernels_give_the_bits_of_uncaptured_ones(model: Any, way: str) -> None:
    older = [graph.number for graph in gravure.report().graphs]
    first = Block(**model)
    second, eager = copy.deepcopy(first), copy.deepcopy(first)
    calls = [
        compiled(first, way, INDUCTOR),
        compiled(second, way, INDUCTOR | {"uncaptured": True}),
    ]
    for i in range(7):
        results = []
        for ours, call in zip((first, second), calls, strict=True):
            ours.zero_grad()
            x = batch(i)
            results.append((leaves(call(x)), state_of(ours), bits(torch.cuda.get_rng_state())))
        assert results[0] == results[1], i
        eager.zero_grad()
        loss_of(eager)(batch(i)).backward()
        assert distance(first, eager) < 0.05
    graphs = [g for g in gravure.report().graphs if g.number not in older]
    states = [s for p in graphs[0].programs for v in p.partitions.values() for s in v]
    assert set(states) == {"captured"} and replays(gravure.Report(graphs)) > 0
    assert not graphs[0].programs[0].remarks


class Written(nn.Module):
    """Constants of the CPU: written by index and by mask, out of tensors, and as operands."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64, device="cuda")

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        y[0] = 0
        y[:, 1] = torch.tensor(0.1, dtype=torch.float64)
        y[y.detach() > 1] = -1
        y[2:, 2].copy_(torch.tensor(3))
        y = y.masked_fill(x < -1, torch.tensor(0.1))
        return torch.where(y > 0, y, torch.tensor(0.25)) * torch.tensor(2.0)


def test_written_constants_are_captured_in_inductors_code() -> None:
    model = Written()
    ours = copy.deepcopy(model)
    call = torch.compile(ours, backend="gravure", options=INDUCTOR | {"require_capture": True})
    for i in range(7):
        torch.manual_seed(i)
        x = torch.randn(32, 64, device="cuda")
        for m, f in ((model, model), (ours, call)):
            m.zero_grad()
            f(x).square().mean().backward()
        assert distance(ours, model) < 1e-4
    (program,) = gravure.report().graphs[-1].programs
    assert program.partitions == {"forward": ["captured"], "backward": ["captured"]}
    assert not program.host_nodes and not program.remarks


def test_a_number_that_changes_on_the_cpu_is_no_constant() -> None:
    linear = nn.Linear(64, 64, device="cuda")

    def loss(x: Tensor, scale: Tensor) -> Tensor:
        y = linear(x).relu() * scale
        y[0] = scale
        return y.square().mean()

    call = torch.compile(loss, backend="gravure", options=INDUCTOR)
    for i in range(8):
        torch.manual_seed(i)
        x, scale = torch.randn(32, 64, device="cuda"), torch.tensor(float(i))
        found, expected = (torch.autograd.grad(f(x, scale), linear.weight) for f in (call, loss))
        torch.testing.assert_close(found, expected)


def test_compiling_draws_none_of_the_callers_numbers() -> None:
    """Inductor times padded products with numbers that it draws, once on each machine."""
    from torch._inductor.utils import fresh_cache

    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).cuda()
    call = torch.compile(model, backend="gravure", dynamic=True, options=INDUCTOR)
    with fresh_cache():
        for rows in (7, 5):
            x = torch.randn(rows, 8, device="cuda")
            before = bits(torch.cuda.get_rng_state())
            call(x).square().mean().backward()
            assert bits(torch.cuda.get_rng_state()) == before


MAKERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "fused": lambda p: torch.optim.AdamW(p, 1e-3, fused=True),
    "tensor-lr": lambda p: torch.optim.AdamW(p, torch.tensor(1e-3, device="cuda"), fused=True),
    "capturable": lambda p: torch.optim.AdamW(p, 1e-3, capturable=True),
    "momentum": lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_step_with_its_optimizer_is_eagers(name: str) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        model = Block(0.1)
        ours = copy.deepcopy(model)
        optimizers = [MAKERS[name](m.parameters()) for m in (model, ours)]
        step = gravure.compile_step(loss_of(ours), optimizer=optimizers[1])
        for i in range(8):
            x = batch(i)
            found = step(x)
            x = batch(i)
            expected = loss_of(model)(x)
            expected.backward()
            optimizers[0].step()
            optimizers[0].zero_grad()
            assert leaves(found) == leaves(expected.detach())
            assert state_of(ours) == state_of(model), i
        program = gravure.report().graphs[-1].programs[0]
        # The update of a model that draws is apart.
        assert program.partitions == {"step": ["captured"] * 2}
        assert program.host_nodes == {"unsafe-tag: gravure::before_update": 1}
    finally:
        torch.use_deterministic_algorithms(False)


def test_triton_kernels_in_a_graph() -> None:
    triton = pytest.importorskip("triton")
    import triton.language as tl

    @triton.jit
    def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=at < n)
        tl.store(y_ptr + at, x * 2, mask=at < n)

    def run(x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        double[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), BLOCK=128)
        return (y + 1).sin()

    for codegen in ("aten", "inductor"):
        torch._dynamo.reset()
        options = {"codegen": codegen, "on_missed": "raise"}
        call = torch.compile(run, backend="gravure", options=options)
        with torch.no_grad():
            for i in range(6):
                torch.manual_seed(i)
                x = torch.randn(1000, device="cuda")
                assert torch.allclose(call(x), (x * 2 + 1).sin(), atol=1e-6)
        states = gravure.report().graphs[-1].programs[0].partitions
        assert states == {"step": ["captured"]}


@pytest.mark.parametrize("codegen", ["aten", "inductor"])
def test_flex_attention_trains(codegen: str) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    weight = nn.Parameter(torch.randn(64, 64, device="cuda") / 8)

    def loss(x: Tensor) -> Tensor:
        y = (x @ weight).view(2, 128, 4, 16).transpose(1, 2)
        z = flex_attention(y, y, y, score_mod=lambda s, b, h, i, j: torch.where(i >= j, s, -1e9))
        return z.square().mean()

    # As eager's operators its backward makes tensors of numbers, which no capture takes: it runs
    # uncaptured.
    missed = "raise" if codegen == "inductor" else "warn"
    options = {"codegen": codegen, "on_missed": missed}
    call = torch.compile(loss, backend="gravure", fullgraph=True, options=options)
    for i in range(6):
        torch.manual_seed(i)
        x = torch.randn(2, 128, 64, device="cuda")
        weight.grad = None
        call(x).backward()
        found = weight.grad.clone()
        y = (x @ weight).view(2, 128, 4, 16).transpose(1, 2)
        weight.grad = None
        F.scaled_dot_product_attention(y, y, y, is_causal=True).square().mean().backward()
        assert (found - weight.grad).norm() / weight.grad.norm() < 1e-2

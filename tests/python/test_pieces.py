"""A loop over experts, whose token counts are other ones in each step: right in every bit."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import gravure
import pytest
import torch
import torch.nn.functional as F
from running import DEVICES, bits
from torch import Tensor, nn

DIM, ROWS = 32, 48
EXPERTS = 5
COUNTS = [
    (10, 10, 10, 10, 8),
    (48, 0, 0, 0, 0),
    (1, 0, 46, 0, 1),
    (0, 0, 0, 48, 0),
    (7, 13, 8, 9, 11),
    (1, 1, 1, 1, 44),
]


def pieces_of(x: Tensor, counts: Tensor) -> tuple[Tensor, ...]:
    sizes = counts.tolist()
    for size in sizes:
        torch._check(size >= 0)
        torch._check(size <= ROWS)
    return x.split(sizes)


class Experts(nn.Module):
    """Each expert works on the rows that it is given."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        shape = (EXPERTS, DIM, DIM)
        self.w1, self.w2, self.w3 = (
            nn.Parameter(torch.randn(shape, generator=generator)) for _ in range(3)
        )

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        parts = [
            (F.silu(part @ self.w1[i]) * (part @ self.w2[i])) @ self.w3[i]
            for i, part in enumerate(pieces_of(x, counts))
        ]
        return (torch.cat(parts) * x).square().mean()


def batch(counts: tuple[int, ...], seed: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, DIM, generator=generator).to(device), torch.tensor(counts).to(device)


def eager_step(module: nn.Module, x: Tensor, counts: Tensor) -> list[Tensor]:
    module.zero_grad()
    loss = module(x, counts)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in module.parameters())]


def check_step(
    call: Callable[..., Tensor], mine: nn.Module, reference: nn.Module, data: tuple[Tensor, Tensor]
) -> None:
    """Loss and gradients of `mine`, by `call`, have the bits of the reference's eager step."""
    mine.zero_grad()
    loss = call(*data)
    got = [loss.detach(), *(p.grad for p in mine.parameters())]
    want = eager_step(reference, *data)
    assert [*map(bits, got)] == [*map(bits, want)], f"counts {data[1].tolist()}"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", ["whole step", "backend", "one thread now and then"])
@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_other_counts_in_each_step(way: str, device: str) -> None:
    """One thread: a GPU's backward runs on a thread of autograd's, unless one asks otherwise."""
    torch._dynamo.reset()
    mine, reference = Experts().to(device), Experts().to(device)
    whole = way == "whole step"
    compiled = gravure.compile_step(mine) if whole else torch.compile(mine, backend="gravure")

    def call(x: Tensor, counts: Tensor) -> Tensor:
        loss = compiled(x, counts)
        if not whole:
            several = way == "backend" or step % 4 == 3
            with torch.autograd.set_multithreading_enabled(several):
                loss.backward()
        return loss

    for step in range(3 * len(COUNTS)):
        check_step(call, mine, reference, batch(COUNTS[step % len(COUNTS)], step, device))


class Drawn(nn.Module):
    """Works on pieces by calls that are drawn: the same for all, but for one now and then."""

    BINARY = torch.add, torch.mul, torch.sub
    UNARY = torch.neg, torch.relu, torch.abs, F.silu

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.pieces = self.random.randint(3, 6)
        generator = torch.Generator().manual_seed(seed)
        shape = (self.pieces, DIM, DIM)
        self.w = nn.Parameter(torch.randn(shape, generator=generator) / 8)
        self.bias = nn.Parameter(torch.randn(DIM, generator=generator))
        self.calls = [self._draw(2 + k) for k in range(self.random.randint(4, 9))]

    def _draw(self, values: int) -> tuple[str, Any, list[int], int]:
        kind = self.random.choice(["binary", "binary", "unary", "mm", "bias"])
        call = self.random.choice(self.BINARY if kind in ("binary", "bias") else self.UNARY)
        operands = [self.random.randrange(max(0, values - 4), values) for _ in range(2)]
        return kind, call, operands, self.random.choice([-1, -1, -1, 0, self.pieces - 1])

    def _work(self, piece: int, part: Tensor) -> Tensor:
        values = [part, part @ self.w[piece]]
        for kind, call, (a, b), left_out in self.calls:
            if piece == left_out:
                values.append(values[a])
            elif kind == "mm":
                values.append(values[a] @ self.w[piece])
            elif kind == "unary":
                values.append(call(values[a]))
            else:
                values.append(call(values[a], self.bias if kind == "bias" else values[b]))
        return values[-1] + values[1] * self.bias

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        done = torch.cat([self._work(i, part) for i, part in enumerate(pieces_of(x, counts))])
        return (done.tanh() * x).mean()


@pytest.mark.parametrize("seed", range(12))
@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_calls_on_pieces_that_are_drawn(seed: int) -> None:
    torch._dynamo.reset()
    mine, reference = Drawn(seed), Drawn(seed)
    call = gravure.compile_step(mine)
    cuts = random.Random(seed)
    for step in range(6):
        at = sorted(cuts.choices(range(ROWS + 1), k=mine.pieces - 1))
        sizes = [b - a for a, b in pairwise([0, *at, ROWS])]
        check_step(call, mine, reference, batch(tuple(sizes), step))


@pytest.mark.parametrize("device", DEVICES)
@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_two_forwards_before_their_backwards(device: str) -> None:
    """What a forward saves in pieces lies in one whole, which the next must not overwrite."""
    torch._dynamo.reset()
    mine, reference = Experts().to(device), Experts().to(device)
    compiled = torch.compile(mine, backend="gravure")
    for step in range(6):
        counts = COUNTS[step], COUNTS[(step + 1) % len(COUNTS)]
        first, second = (batch(c, 2 * step + k, device) for k, c in enumerate(counts))
        found = []
        for module, call in ((mine, compiled), (reference, reference)):
            module.zero_grad()
            losses = [call(*first), call(*second)]
            for loss in losses if step % 2 else losses[::-1]:
                loss.backward()
            found.append([bits(p.grad) for p in module.parameters()] + [*map(bits, losses)])
        assert found[0] == found[1], f"step {step}"


def whole_and_loss(x: Tensor, w: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The backward needs the pieces; the caller gets what was put together of them."""
    pieces = [part @ w[i] for i, part in enumerate(pieces_of(x, counts))]
    return torch.cat(pieces), sum(F.gelu(piece).sum() for piece in pieces)


def pointwise_and_loss(x: Tensor, w: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    pieces = [(part @ w[i]) * part for i, part in enumerate(pieces_of(x, counts))]
    return torch.cat(pieces), sum(F.gelu(piece).sum() for piece in pieces)


# What the caller gets of the whole.
GIVEN: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = {
    "whole": lambda whole, x: (whole,),
    "view": lambda whole, x: (whole.t(),),
    "twice": lambda whole, x: (whole, whole),
    "with its view": lambda whole, x: (whole, whole.view(-1)),
    "split": lambda whole, x: whole.split([16, 32]),
    "with an input": lambda whole, x: (whole, x),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [{}, {"uncaptured": True}], ids=["captured", "uncaptured"])
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("function", [whole_and_loss, pointwise_and_loss])
@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_a_write_into_a_result_reaches_no_piece_that_is_saved(
    function: Callable[..., Any], given: str, options: dict[str, Any], device: str
) -> None:
    torch._dynamo.reset()

    def call(x: Tensor, w: Tensor, counts: Tensor) -> tuple[Tensor, ...]:
        whole, loss = function(x, w, counts)
        return *GIVEN[given](whole, x), loss

    poison = {"poison": True} if device == "cpu" else {}
    compiled = torch.compile(call, backend="gravure", options=poison | options)
    for step, counts in enumerate(COUNTS):
        data = batch(counts, step, device)
        generator = torch.Generator().manual_seed(step)
        weights = torch.randn(EXPERTS, DIM, DIM, generator=generator).to(device)
        for target in range(len(GIVEN[given](data[0], data[0]))):
            found = []
            for run in (call, compiled):
                x, w = data[0].clone(), weights.clone().requires_grad_()
                *results, loss = run(x, w, data[1])
                with torch.no_grad():
                    results[target].mul_(3)
                try:
                    loss.backward()
                    found.append([*map(bits, results), bits(loss), bits(w.grad)])
                except RuntimeError as error:
                    assert "modified by an inplace operation" in str(error)
                    found.append("noticed")
            assert found[0] == found[1], f"step {step}, result {target}"


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_what_was_worked_on_in_pieces_is_worked_on_at_once() -> None:
    """Where the whole's size is known it can be captured: of the products of all pieces, all."""
    torch._dynamo.reset()
    counted = Counter(remark["name"] for remark in explained(Experts(), batch(COUNTS[0], 0)))
    # The product, and in the backward its two halves.
    assert counted["pointwise-batched"] == 3
    assert counted["gradients-joined"] == 3
    # One operand of the product (no silu on the CPU is batched), the result, the result's gradient.
    assert counted["products-placed"] == 3
    assert counted["sizes-inferred"] >= 1


def explained(module: nn.Module, data: tuple[Tensor, ...]) -> list[dict[str, str]]:
    return [remark for graph in gravure.explain(module, data).graphs for remark in graph.remarks]


class Negative(nn.Module):
    """Its gradient is -0 in each part: autograd's zeros make 0 of it."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return sum((self.w[i] * x).sum() for i in range(3))


@pytest.mark.parametrize("device", DEVICES)
def test_the_sign_of_zero_in_a_joined_gradient(device: str) -> None:
    x = torch.tensor([-0.0, 0.0, 1.0, -2.0], device=device)
    mine, reference = Negative().to(device), Negative().to(device)
    reference(x).backward()
    assert not torch.signbit(reference.w.grad[:, 0]).any()
    call = gravure.compile_step(mine)
    for _ in range(3):
        mine.zero_grad()
        call(x)
        assert bits(mine.w.grad) == bits(reference.w.grad)

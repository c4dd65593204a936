"""A weight that is used twice under autocast has eager's gradients: it is cast once."""

from __future__ import annotations

import contextlib
import copy
import functools
from pathlib import Path
from typing import Any

import gravure
import models
import pytest
import running
import torch
import torch.nn as nn
import torch.nn.functional as F
from running import need_library
from torch import Tensor
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from training import leaves, replays, same_as_eager, same_steps, step_around

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

bf16 = functools.partial(torch.autocast, "cpu", torch.bfloat16)
fp16 = functools.partial(torch.autocast, "cpu", torch.float16)


def rows(_: int) -> tuple[Tensor]:
    return (torch.randn(32, 16),)


class Shared(nn.Module):
    """A layer that is used several times, as `use` says; `casts` is the autocast."""

    def __init__(self, use: Any, casts: Any = contextlib.nullcontext) -> None:
        super().__init__()
        self.use, self.casts = use, casts
        self.layer, self.other = nn.Linear(16, 16), nn.Linear(16, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.embedding = nn.Embedding(8, 16)
        self.conv = nn.Conv1d(16, 16, 1)
        self.lora = nn.Linear(16, 16)
        self.lora.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with self.casts():
            return self.use(self, x).float()


def twice(m: Shared, x: Tensor) -> Tensor:
    return m.layer(m.layer(x).tanh())


def thrice_and_in_float(m: Shared, x: Tensor) -> Tensor:
    """Additions in float have an order, too."""
    y = m.layer(x).tanh() + m.layer.weight.sum(0)
    y = m.layer(y).tanh() * m.layer.bias.exp()
    return m.layer(y) + m.layer.weight.square().sum(1)


def two_products(m: Shared, x: Tensor) -> Tensor:
    return (x @ m.layer.weight).tanh() @ m.layer.weight


def with_itself(m: Shared, x: Tensor) -> Tensor:
    return x @ torch.mm(m.layer.weight, m.layer.weight)


def view_and_whole(m: Shared, x: Tensor) -> Tensor:
    """Casts of views are not kept."""
    return m.layer(x) + x @ m.layer.weight.t() + x @ m.layer.weight[:, :16]


def siamese(m: Shared, x: Tensor) -> Tensor:
    first, second = (m.other(m.layer(part).relu()) for part in x.chunk(2))
    return torch.cat([first, second]) * F.cosine_similarity(first, second).mean()


def tied(m: Shared, x: Tensor) -> Tensor:
    """The embedding takes it in float, two projections cast it."""
    y = m.embedding(x[:, 0].abs().mul(3).long() % 8) + x
    return F.linear(m.layer(y), m.embedding.weight) @ m.embedding.weight


def convolved(m: Shared, x: Tensor) -> Tensor:
    return m.conv(m.conv(x[:, :, None]).relu())[:, :, 0]


def attended(m: Shared, x: Tensor) -> Tensor:
    y = m.attention(x[None], x[None], x[None])[0]
    return m.attention(y, y, y, need_weights=False)[0][0]


def attended_across(m: Shared, x: Tensor) -> Tensor:
    """Three projections of one weight: casts of views, which are not kept."""
    y = m.attention(x[None], x[None].sin(), x[None].cos())[0]
    return m.attention(y, y.sin(), y.cos(), need_weights=False)[0][0]


def frozen(m: Shared, x: Tensor) -> Tensor:
    return m.layer(m.lora(m.lora(x)))


def without_gradients_first(m: Shared, x: Tensor) -> Tensor:
    with torch.no_grad():
        target = m.layer(x)
    return m.layer(m.layer(x)) - target


def computed(m: Shared, x: Tensor) -> Tensor:
    """No leaf: each use casts it."""
    weight = m.layer.weight * 2
    return F.linear(F.linear(x, weight), weight)


def nested(m: Shared, x: Tensor) -> Tensor:
    with bf16():
        x = m.layer(x)
    x = m.layer(x.float())
    with torch.autocast("cpu", enabled=False):
        x = m.layer(x.float())
    with bf16(cache_enabled=False):
        x = m.layer(m.layer(x))
    return m.layer(x)


def in_turns(m: Shared, x: Tensor) -> Tensor:
    """Each autocast has its own casts."""
    for _ in range(2):
        with bf16():
            x = m.layer(m.layer(x).float()).float()
    return x


def cleared_late(m: Shared, x: Tensor) -> Tensor:
    """Where an outer one is off, inner ones share."""
    with torch.autocast("cpu", enabled=False):
        return in_turns(m, x)


def cast_by_hand(m: Shared, x: Tensor) -> Tensor:
    weight = m.layer.weight.to(torch.bfloat16)
    y = F.linear(x, weight) + F.linear(x.sin(), m.layer.weight.to(torch.bfloat16))
    return m.layer(m.layer(y))


def written_between(m: Shared, x: Tensor) -> Tensor:
    """The second use has the older cast."""
    y = m.layer(x)
    with torch.no_grad():
        m.layer.weight.mul_(0.5)
    return m.layer(y)


def recomputed(m: Shared, x: Tensor, *, reentrant: bool = False) -> Tensor:
    def block(x: Tensor) -> Tensor:
        return m.layer(m.other(m.layer(x)).tanh())

    x = checkpoint(block, m.other(x), use_reentrant=reentrant)
    x = checkpoint(block, x, use_reentrant=reentrant)
    return m.layer(x) if not reentrant else x


def recomputed_in_turns(m: Shared, x: Tensor) -> Tensor:
    return recomputed(m, x, reentrant=True)


def recomputed_inside(m: Shared, x: Tensor) -> Tensor:
    """One checkpointed part in another."""

    def inner(x: Tensor) -> Tensor:
        return m.layer(x).tanh()

    def outer(x: Tensor) -> Tensor:
        return checkpoint(inner, checkpoint(inner, x, use_reentrant=False), use_reentrant=False)

    return m.layer(checkpoint(outer, x, use_reentrant=False))


def drawn_again(m: Shared, x: Tensor) -> Tensor:
    """The backward needs the dropout of the forward, which it does not keep."""

    def block(x: Tensor) -> Tensor:
        return F.dropout(m.layer(x).tanh(), 0.5)

    return m.layer(checkpoint(block, m.other(x), use_reentrant=False))


def drawn_again_but_for_products(m: Shared, x: Tensor) -> Tensor:
    def block(x: Tensor) -> Tensor:
        return F.dropout(m.layer(x).tanh(), 0.5)

    kept = [torch.ops.aten.addmm.default]
    contexts = functools.partial(create_selective_checkpoint_contexts, kept)
    return m.other(checkpoint(block, x, use_reentrant=False, context_fn=contexts))


USES = [
    twice,
    thrice_and_in_float,
    two_products,
    with_itself,
    view_and_whole,
    siamese,
    tied,
    convolved,
    attended,
    attended_across,
    frozen,
    without_gradients_first,
    computed,
    nested,
    cleared_late,
    cast_by_hand,
    written_between,
    recomputed,
    recomputed_in_turns,
    recomputed_inside,
    drawn_again,
    drawn_again_but_for_products,
]


@pytest.mark.parametrize("use", [*USES, in_turns])
def test_inside_a_compiled_function(use: Any) -> None:
    casts = contextlib.nullcontext if use in (in_turns, cleared_late) else bf16
    assert replays(same_as_eager(Shared(use, casts), rows))


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("use", USES)
def test_around_a_compiled_model(use: Any, inside: bool) -> None:
    step = functools.partial(step_around, bf16, inside=inside)
    assert replays(same_as_eager(Shared(use), rows, step))


@pytest.mark.parametrize("use", [use for use in USES if use is not written_between])
def test_in_a_step(use: Any) -> None:
    model = Shared(use, bf16)
    ours = copy.deepcopy(model)
    step = gravure.compile_step(lambda x: ours(x).square().mean(), options={"poison": True})

    def fn(x: Tensor) -> Tensor:
        return model(x).square().mean()

    same_steps(step, ours, models.Model(fn, rows(0), model), 5)


def test_in_a_step_with_its_optimizer() -> None:
    model = Shared(siamese, bf16)
    ours = copy.deepcopy(model)
    mine, theirs = (torch.optim.AdamW(m.parameters(), 0.01) for m in (ours, model))
    step = gravure.compile_step(lambda x: ours(x).square().mean(), optimizer=mine)
    for i in range(5):
        torch.manual_seed(i)
        (x,) = rows(i)
        step(x)
        theirs.zero_grad()
        model(x).square().mean().backward()
        theirs.step()
        assert leaves(ours.state_dict()) == leaves(model.state_dict())


@pytest.mark.parametrize("use", USES)
def test_in_an_exported_pair(use: Any, tmp_path: Path) -> None:
    model = Shared(use, bf16)

    def loss(x: Tensor) -> Tensor:
        return model(x).square().mean()

    running.same_as_eager(loss, rows(0), tmp_path, joint=True)


def test_in_half_precision() -> None:
    assert replays(same_as_eager(Shared(twice, fp16), rows))


def test_open_sizes() -> None:
    def batch(i: int) -> tuple[Tensor]:
        return (torch.randn(8 + i % 3, 16),)

    same_as_eager(Shared(twice, bf16), batch, dynamic=True)


def test_an_error_in_a_checkpointed_part_says_what_eagers_does() -> None:
    def run(x: Tensor) -> Tensor:
        return checkpoint(lambda x: torch.linalg.cholesky(x.float()), x, use_reentrant=False)

    said = []
    for call in (run, torch.compile(run, backend="gravure")):
        with bf16(), pytest.raises(torch.linalg.LinAlgError) as error:
            call(-torch.eye(4).requires_grad_())
        said.append(str(error.value))
    assert said[0] == said[1]

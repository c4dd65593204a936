"""Small models drawn from a seed, and ways of training them: what no list of cases thinks of."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from running import bits
from torch import Tensor
from torch.utils.checkpoint import checkpoint

WIDTH, CLASSES = 8, 4

Call = Callable[..., Any]
# What was seen, in order: a name, and the bits of some tensors.
Log = list[tuple[str, list[Any]]]


def _residual(part: Part, x: Tensor) -> Tensor:
    return F.dropout(torch.relu(part.linear(x)), part.dropout, part.training) + x


def _averaged(part: Part, x: Tensor) -> Tensor:
    if part.training:
        part.count.add_(1)
        part.average.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    return x * part.scale + part.average


def _normed(part: Part, x: Tensor) -> Tensor:
    return part.norm(part.linear(x))


def _mixed(_: Part, x: Tensor) -> Tensor:
    a, b, c, d = x.chunk(4, 1)
    return torch.cat([d, a * b.sigmoid(), c, b], 1).t().contiguous().t()


def _written(_: Part, x: Tensor) -> Tensor:
    y = x.clone()
    y[:, : WIDTH // 2] *= 2
    y[0] = 0
    return y.clamp_(-3, 3)


def _embedded(part: Part, x: Tensor) -> Tensor:
    return x + part.table(torch.arange(x.shape[0], device=x.device) % 5)


def _attended(_: Part, x: Tensor) -> Tensor:
    q = x.view(-1, 2, WIDTH // 2)
    return (torch.softmax(q @ q.transpose(1, 2), -1) @ q).reshape(-1, WIDTH)


def _noisy(part: Part, x: Tensor) -> Tensor:
    return x + torch.randn_like(x) * 0.1 + torch.rand_like(x[0]) if part.training else x


def _scaled(_: Part, x: Tensor) -> Tensor:
    with torch.no_grad():
        largest = x.abs().amax()
    return x / (largest + 1)


def _summed(part: Part, x: Tensor) -> Tensor:
    return torch.where(x > 0, x, x * part.scale.detach()).cumsum(1)


def _transposed(part: Part, x: Tensor) -> Tensor:
    return F.linear(x, part.linear.weight.t()) + part.linear.bias


def _sorted(_: Part, x: Tensor) -> Tensor:
    order = x.detach().sum(1).argsort()
    return x[order].index_add(0, order, x)


def _copied(part: Part, x: Tensor) -> Tensor:
    y = torch.empty_like(x).copy_(x).add_(part.scale)
    return y.as_strided((x.shape[0], WIDTH), (WIDTH, 1))


def _convolved(part: Part, x: Tensor) -> Tensor:
    return F.conv1d(x.unsqueeze(1), part.scale[:3].view(1, 1, 3), padding=1).squeeze(1)


def _rounded(_: Part, x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).mul(2).to(x.dtype)


def _counted(_: Part, x: Tensor) -> Tensor:
    return x + (x.detach() > 0).nonzero().shape[0] * 0.01


def _constant(part: Part, x: Tensor) -> Tensor:
    slopes = torch.tensor([1.0 + i for i in range(WIDTH)], device=x.device).reciprocal()
    if part.dropout:
        slopes += part.scale.detach()
    return torch.where(x > 0, x * slopes, torch.tensor(0.25)) * torch.tensor(0.5)


def _masked(part: Part, x: Tensor) -> Tensor:
    y = x * part.scale
    y[x.detach() > 1] = -1
    return y.masked_fill(x.detach() < -1, 0.5)[:, torch.tensor([1, 0, 3, 2, 5, 4, 7, 6])]


KINDS = {kind.__name__[1:]: kind for kind in (
    _residual, _averaged, _normed, _mixed, _written, _embedded, _attended, _noisy, _scaled,
    _summed, _transposed, _sorted, _copied, _convolved, _rounded, _counted, _constant,
    _masked)}  # fmt: skip
NORMS: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: nn.LayerNorm(WIDTH),
    "batch": lambda: nn.BatchNorm1d(WIDTH),
    "none": nn.Identity,
}
# AOTAutograd writes statistics once where eager writes them in the recomputation, too.
_NOT_CHECKPOINTED = ("averaged", "normed")


class PartPlan(NamedTuple):
    """What one part is: plain data, which a test can print."""

    kind: str = "residual"
    checkpointed: bool = False
    dropout: float = 0.0
    shared: bool = False
    norm: str = "layer"


class ModelPlan(NamedTuple):
    """What a model is, and what it returns beside its loss."""

    parts: tuple[PartPlan, ...]
    more: int = 0
    views: bool = False
    none: bool = False


def _draw_part(draw: Random) -> PartPlan:
    kind = draw.choice(list(KINDS))
    return PartPlan(
        kind,
        checkpointed=draw.random() < 0.2 and kind not in _NOT_CHECKPOINTED,
        dropout=draw.choice([0.0, 0.3]),
        shared=draw.random() < 0.2,
        norm=draw.choice(list(NORMS)),
    )


def draw_plan(draw: Random, *, views: bool) -> ModelPlan:
    """The plan of a model of one to six parts. `views`: it may return a view of a result, too."""
    return ModelPlan(
        tuple([_draw_part(draw) for _ in range(draw.randint(1, 6))]),
        more=draw.choice([0, 0, 1, 2]),
        views=views and draw.random() < 0.2,
        none=draw.random() < 0.2,
    )


class Part(nn.Module):
    count: Tensor
    average: Tensor

    def __init__(self, plan: PartPlan, shared: nn.Linear) -> None:
        super().__init__()
        self.kind, self.checkpointed = KINDS[plan.kind], plan.checkpointed
        self.dropout = plan.dropout
        self.linear = shared if plan.shared else nn.Linear(WIDTH, WIDTH)
        self.norm = NORMS[plan.norm]()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.zeros(WIDTH))
        self.unused, self.scale = nn.Parameter(torch.ones(3)), nn.Parameter(torch.randn(WIDTH))
        self.table = nn.Embedding(5, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if self.checkpointed:
            return checkpoint(self.kind, self, x, use_reentrant=False)
        return self.kind(self, x)


class DrawnModel(nn.Module):
    """Returns its loss, and what else it drew: results, inner values, a view, None."""

    def __init__(self, plan: ModelPlan) -> None:
        super().__init__()
        shared = nn.Linear(WIDTH, WIDTH)
        self.parts = nn.ModuleList(Part(part, shared) for part in plan.parts)
        self.more, self.views, self.none = plan.more, plan.views, plan.none
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        values = list(itertools.accumulate(self.parts, lambda value, part: part(value), initial=x))
        z = self.head(values[-1])
        loss = z.logsumexp(1).mean() if y is None else F.cross_entropy(z, y)
        results = [loss, *[z, values[1]][: self.more]]
        results += [z.view(-1)] if self.views else []
        results += [None] if self.none else []
        return tuple(results) if len(results) > 1 else loss


def results_of(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def seen(values: Any) -> list[Any]:
    return [bits(value) for value in values]


def batch(draw: Random, number: int, rows: int, *, labels: bool) -> tuple[Tensor, ...]:
    count = rows if draw.random() < 0.85 else draw.choice([4, 5, 7])
    torch.manual_seed(1000 + number)
    x = torch.randn(count, WIDTH, requires_grad=draw.random() < 0.3)
    return (x, torch.randint(0, CLASSES, (count,))) if labels else (x,)


def train(model: DrawnModel, call: Call, draw: Random) -> Log:
    """Some steps with `call`, which runs `model`: the same ones for the same `draw`."""
    log: Log = []
    optimizer = draw.choice([None, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)])
    rows, labels, held = draw.choice([4, 6]), draw.random() < 0.5, []
    for number in range(draw.randint(6, 9)):
        args = batch(draw, number, rows, labels=labels)
        change = draw.random()
        if change < 0.1:
            model.eval()
            with torch.no_grad():
                log.append(("evaluated", seen(results_of(call(*args)))))
            model.train()
            continue
        if change < 0.2:
            parameter = draw.choice(list(model.parameters()))
            parameter.requires_grad_(not parameter.requires_grad)
        elif change < 0.25:
            for parameter in model.parameters():
                parameter.data.mul_(0.99)
        elif change < 0.3:
            model.head.weight = nn.Parameter(model.head.weight.detach() * 1.1)
            optimizer = None
        kept, casts = draw.random() < 0.1, 0.3 < change < 0.36
        for _ in range(draw.choice([1, 1, 1, 2])):
            results = []
            for _ in range(2 if draw.random() < 0.15 else 1):
                with torch.autocast("cpu", torch.bfloat16, enabled=casts, cache_enabled=False):
                    results.append(results_of(call(*args)))
            for result in results:
                _backward(result, draw, kept=kept)
            log.append(("results", [seen(result) for result in results]))
            held += results[:1] if draw.random() < 0.2 else []
        log.append(("gradients", seen([args[0].grad, *[p.grad for p in model.parameters()]])))
        if optimizer is not None:
            optimizer.step()
        if draw.random() < 0.9:
            model.zero_grad(set_to_none=draw.random() < 0.8)
        log.append(("held", [seen(result) for result in held]))
    return [*log, ("state", seen(model.state_dict().values()))]


def _backward(result: tuple[Any, ...], draw: Random, *, kept: bool) -> None:
    total = result[0]
    for value in result[1:]:
        if draw.random() < 0.3 and value is not None and value.requires_grad:
            total = total + value.float().sum()
    if total.requires_grad:
        total.backward(retain_graph=kept)
        if kept:
            total.backward()

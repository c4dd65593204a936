"""Tensors that come to share memory behind the first call, or no longer do: as eager, to the bit.

`.data =`, `set_` and arguments that are views of one memory are seen by nobody but the kernels. A
graph that writes one of the two was traced for tensors that have memory of their own.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from gravure.torch_api.private_names import MINOR
from running import bits, need_library
from torch import Tensor

need_library()

ROLES = ("parameter", "buffer", "argument")
WRITES = ("first", "second", "both", "none")
# What calls share: "a" none, each other letter a way; the first one is traced.
WHEN = ("aaaaXXXXaaaa", "XXXXaaaaXXXX", "aaaaXaXaXXXX")
COUNT = 6


def by_data(u: Tensor, v: Tensor) -> None:
    v.data = u.data


def by_set(u: Tensor, v: Tensor) -> None:
    v.set_(u)


def by_storage(u: Tensor, v: Tensor) -> None:
    v.set_(u.untyped_storage(), u.storage_offset(), v.shape, v.stride())


def in_part(u: Tensor, v: Tensor) -> None:
    both = torch.cat([u.data, v.data])
    u.data, v.data = both[:COUNT], both[COUNT - 2 : 2 * COUNT - 2]


def by_another_storage(u: Tensor, v: Tensor) -> None:
    """Of the same address, as from NumPy or DLPack."""
    v.data = torch.from_numpy(u.detach().numpy())


def side_by_side(u: Tensor, v: Tensor) -> None:
    """One storage, and no element of both."""
    both = torch.cat([u.data, v.data])
    u.data, v.data = both[:COUNT], both[COUNT:]


SHARING: dict[str, Callable[[Tensor, Tensor], None]] = {
    "data": by_data,
    "set_": by_set,
    "storage": by_storage,
    "in part": in_part,
    "another storage": by_another_storage,
    "side by side": side_by_side,
}


class Pair(nn.Module):
    """`u` and `v`, each a parameter, a buffer or an argument, and which of them is written."""

    def __init__(self, roles: tuple[str, str], writes: str) -> None:
        super().__init__()
        self.writes = writes
        self.weight = nn.Parameter(torch.linspace(-1, 1, COUNT))
        self.given: list[str] = []
        for name, role in zip("uv", roles, strict=True):
            value = torch.linspace(0.5, 2, COUNT) if name == "u" else torch.linspace(-2, 1, COUNT)
            if role == "parameter":
                self.register_parameter(name, nn.Parameter(value, requires_grad=False))
            elif role == "buffer":
                self.register_buffer(name, value)
            else:
                self.given.append(name)

    def forward(self, x: Tensor, *given: Tensor) -> Tensor:
        named = dict(zip(self.given, given, strict=True))
        u = named["u"] if "u" in named else self.u
        v = named["v"] if "v" in named else self.v
        if self.writes in ("first", "both"):
            u.add_(0.5)
        y = (v * 3).sin() + u
        if self.writes in ("second", "both"):
            v.mul_(0.75)
        return (y * self.weight * x).sum() + (u * self.weight).sum()


class Run:
    """A pair beside its arguments, which are the same tensors in each call or others."""

    def __init__(self, roles: tuple[str, str], writes: str, side: Callable[[Any], Any]) -> None:
        torch.manual_seed(0)
        self.module = Pair(roles, writes)
        self.call = side(self.module)
        self.passed = {name: torch.linspace(-1, 2, COUNT) for name in self.module.given}

    def tensor(self, name: str) -> Tensor:
        return self.passed[name] if name in self.passed else getattr(self.module, name)

    def share(self, way: str) -> None:
        with torch.no_grad():
            SHARING[way](self.tensor("u"), self.tensor("v"))

    def part(self) -> None:
        for name in "uv":
            self.tensor(name).data = self.tensor(name).detach().clone()

    def step(self, i: int) -> Any:
        torch.manual_seed(i)
        self.result = self.call(torch.randn(COUNT), *self.passed.values())
        return self.seen(self.result)

    def seen(self, result: Any = None) -> Any:
        return [bits(each) for each in (result, self.tensor("u"), self.tensor("v"), self.grad())]

    def grad(self) -> Tensor | None:
        grad, self.module.weight.grad = self.module.weight.grad, None
        return grad


def trained(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(*args: Tensor) -> Tensor:
        loss = fn(*args)
        loss.backward()
        return loss.detach()

    return call


def evaluated(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.no_grad()(fn)


def compiled(fn: Any, **options: Any) -> Any:
    return torch.compile(fn, backend="gravure", options=options or None)


SIDES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "trained": (trained, lambda fn: trained(compiled(fn))),
    "evaluated": (evaluated, lambda fn: evaluated(compiled(fn))),
    "inductor": (trained, lambda fn: trained(compiled(fn, codegen="inductor"))),
}


def rows() -> list[tuple[str, tuple[str, str], str, str, str]]:
    """Each pair of choices at least once, drawn."""
    draw = random.Random(1)
    axes: list[list[Any]] = [
        ["trained", "evaluated"],
        list(itertools.product(ROLES, ROLES)),
        list(WRITES),
        list(SHARING),
        list(WHEN),
    ]
    left = {
        (i, a, j, b)
        for i, j in itertools.combinations(range(len(axes)), 2)
        for a in axes[i]
        for b in axes[j]
    }
    found = []
    while left:
        best: tuple[int, Any] = (-1, None)
        for _ in range(60):
            row = [draw.choice(axis) for axis in axes]
            pairs = itertools.combinations(range(len(axes)), 2)
            news = sum((i, row[i], j, row[j]) in left for i, j in pairs)
            best = max(best, (news, row), key=lambda each: each[0])
        for i, j in itertools.combinations(range(len(axes)), 2):
            left.discard((i, best[1][i], j, best[1][j]))
        found.append(tuple(best[1]))
    found.append(("inductor", ("buffer", "buffer"), "both", "data", WHEN[0]))
    found.append(("inductor", ("buffer", "argument"), "first", "in part", WHEN[0]))
    return found


ROWS = rows()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, row)).replace(" ", "_"))
def test_law_3_what_comes_to_share_memory_is_computed_as_in_eager(row: Any) -> None:
    side, roles, writes, way, when = row
    if MINOR < 15 and way == "in part" and when[0] == "X":
        pytest.xfail("torch 2.11 traces a base of two views that is smaller than the one it passes")
    eager, ours = SIDES[side]
    both = [Run(roles, writes, eager), Run(roles, writes, ours)]
    before = "a"
    try:
        for i, now in enumerate(when):
            for each in both:
                if now != before:
                    each.share(way) if now == "X" else each.part()
            expected, found = (each.step(i) for each in both)
            if side == "inductor":  # whose sine and sums round otherwise; what is written does not
                assert found[1:3] == expected[1:3], f"call {i} of {when}"
                torch.testing.assert_close(both[1].result, both[0].result)
            else:
                assert found == expected, f"call {i} of {when}"
            before = now
    finally:
        torch._dynamo.reset()


def compare(both: list[Run], calls: str, way: str, first: int = 0) -> None:
    before = "a"
    for i, now in enumerate(calls):
        if now != before:
            for each in both:
                each.share(way) if now == "X" else each.part()
        assert both[0].step(first + i) == both[1].step(first + i), f"call {i} of {calls}"
        before = now


def test_law_11_a_warning_names_both_and_the_cure(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "gravure")
    roles = "buffer", "argument"
    both = [Run(roles, "first", SIDES["trained"][k]) for k in (0, 1)]
    compare(both, "aaaa", "data")
    assert not caplog.messages
    for each in both:
        each.share("data")
    for i in range(4):
        assert both[0].step(i) == both[1].step(i)
    (said,) = [m for m in caplog.messages if "share memory" in m]
    assert '"u"' in said and "given" in said and "clone()" in said and "eager" in said


@pytest.mark.parametrize("way", ["side by side", "data"])
def test_who_shares_no_element_or_writes_none_is_replayed(way: str) -> None:
    writes = "both" if way == "side by side" else "none"
    both = [Run(("buffer", "buffer"), writes, SIDES["trained"][k]) for k in (0, 1)]
    compare(both, "aaaaaaaaXXXXXXXX", way)
    gravure_report = gravure.report()
    programs = [p for g in gravure_report.graphs for p in g.programs]
    before = sum(p.stats["replays"] for p in programs)
    compare(both, "aaaa", way)
    assert sum(p.stats["replays"] for p in programs) >= before


@pytest.mark.parametrize("side", ["trained", "evaluated"])
@pytest.mark.parametrize("written", ["a", "b"])
def test_law_3_arguments_that_are_views_at_any_offset(side: str, written: str) -> None:
    weight = torch.linspace(-1, 1, COUNT, requires_grad=True)

    def fn(a: Tensor, b: Tensor) -> Tensor:
        (a if written == "a" else b).add_(0.25)
        return ((a * weight).sin() + b * 2).sum()

    eager, ours = (make(fn) for make in SIDES[side])
    draw = random.Random(2)
    memory = [torch.linspace(-1, 1, 64) for _ in range(2)]
    seen = []
    for i in range(40):
        at = draw.randrange(0, 58), draw.randrange(0, 58)
        if i % 3 == 0:  # apart
            at = draw.randrange(0, 20), draw.randrange(26, 58)
        found = []
        for base, call in zip(memory, (eager, ours), strict=True):
            result = call(*(base[start : start + COUNT] for start in at))
            found.append([bits(result), bits(base), bits(weight.grad)])
            weight.grad = None
        assert found[0] == found[1], f"call {i}: {at}"
        seen.append(len([p for graph in gravure.report().graphs for p in graph.programs]))
    assert seen[-1] == seen[4]
    torch._dynamo.reset()


# ---- steps


@pytest.mark.parametrize("way", ["data", "in part", "another storage"])
@pytest.mark.parametrize("roles", [("buffer", "buffer"), ("buffer", "argument")])
def test_a_step_refuses_what_it_was_not_compiled_for(way: str, roles: Any) -> None:
    both = [Run(roles, "both", trained), Run(roles, "both", gravure.compile_step)]
    compare(both, "aaaa", way)
    for each in both:
        each.share(way)
    for i in range(3):
        was = both[1].seen()
        with pytest.raises(RuntimeError, match="share memory"):
            both[1].step(i)
        assert both[1].seen() == was
    for each in both:
        each.part()
    compare(both, "aaaa", way, first=9)


# ---- optimizers, updates, clipping


def steps_of(kind: Any, way: str, compiles: bool, when: str, **settings: Any) -> list[Any]:
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.linspace(-1, 1, COUNT) * (i + 1)) for i in range(3)]
    optimizer = kind(weights, lr=0.1, **settings)
    if compiles:
        optimizer = gravure.compile_optimizer(optimizer)
    found = []
    before = "a"
    for i, now in enumerate(when):
        if now != before:
            if now == "X":
                SHARING[way](weights[0].detach(), weights[1].detach())
                pair = [weights[0].detach(), weights[1].detach()]
                SHARING[way](*pair)
                weights[0].data, weights[1].data = pair
            else:
                for each in weights:
                    each.data = each.detach().clone()
        before = now
        for k, each in enumerate(weights):
            each.grad = torch.linspace(-1, 2, COUNT) * (i + k + 1)
        optimizer.step()
        found += [bits(each) for each in weights]
    return found


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("way", ["data", "in part", "another storage", "side by side"])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [(torch.optim.SGD, {"momentum": 0.9, "foreach": True}), (torch.optim.Adam, {})],
)
def test_an_optimizer_steps_as_its_own(kind: Any, settings: Any, way: str, when: str) -> None:
    assert steps_of(kind, way, True, when, **settings) == steps_of(
        kind, way, False, when, **settings
    )


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("way", ["data", "in part", "another storage", "side by side"])
def test_an_update_is_the_functions(way: str, when: str) -> None:
    def update(u: Tensor, v: Tensor, w: Tensor, by: float) -> None:
        u.add_(by)
        w.copy_(v * 2)
        v.mul_(by)
        w.add_(u.exp())

    def run(fn: Callable[..., None]) -> list[Any]:
        tensors = [torch.linspace(-1, 1, COUNT) * (i + 1) for i in range(3)]
        found, before = [], "a"
        for i, now in enumerate(when):
            if now != before:
                if now == "X":
                    SHARING[way](tensors[0], tensors[1])
                else:
                    tensors = [each.clone() for each in tensors]
            before = now
            fn(*tensors, 0.25 + 0.01 * i)
            found += [bits(each) for each in tensors]
        return found

    assert run(gravure.compile_update(update)) == run(update)


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("way", ["data", "in part", "another storage", "side by side"])
def test_gradients_are_clipped_as_by_torch(way: str, when: str) -> None:
    def run(clip: Callable[..., Tensor]) -> list[Any]:
        weights = [nn.Parameter(torch.zeros(COUNT)) for _ in range(3)]
        found = []
        for i, now in enumerate(when):
            grads = [torch.linspace(-1, 3, COUNT) * (i + k + 1) for k in range(3)]
            if now == "X":
                SHARING[way](grads[0], grads[1])
            for weight, grad in zip(weights, grads, strict=True):
                weight.grad = grad
            found.append(bits(clip(weights, 0.5)))
            found += [bits(each.grad) for each in weights]
        return found

    assert run(gravure.clip_grad_norm_) == run(torch.nn.utils.clip_grad_norm_)


@pytest.mark.parametrize("way", ["data", "in part"])
def test_a_step_with_its_optimizer(way: str) -> None:
    """Two parameters that share memory are both updated: by the optimizer's own step."""

    def run(compiles: bool) -> list[Any]:
        torch.manual_seed(0)
        u, v = (nn.Parameter(torch.linspace(-1, 1, COUNT) * k) for k in (1, 2))
        optimizer = torch.optim.SGD([u, v], lr=0.1, momentum=0.9)

        def loss_of(x: Tensor) -> Tensor:
            return ((u * x).sin() + v * x).sum()

        step = gravure.compile_step(loss_of, optimizer=optimizer) if compiles else None
        found = []
        for i in range(12):
            if i == 6:
                pair = [u.detach(), v.detach()]
                SHARING[way](*pair)
                u.data, v.data = pair
            x = torch.linspace(0, 1, COUNT) * (i + 1)
            if step is not None:
                loss = step(x)
            else:
                optimizer.zero_grad()
                loss = loss_of(x)
                loss.backward()
                optimizer.step()
            found += [bits(loss), bits(u), bits(v)]
        return found

    assert run(compiles=True) == run(compiles=False)

"""A tensor that a graph uses at several places, and other code uses, too, has eager's gradient in
every bit: what each use gives is added in eager's order."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from gravure.calls.live_graphs import followed
from native_steps import is_native
from running import DEVICE, bits, need_library
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from training import compiled, replays

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

SIZE = 32
Step = Callable[[nn.Module, Callable[..., Any], int], list[Tensor]]
Wraps = Callable[[nn.Module, Callable[..., Any]], Any]


class Attention(nn.Module):
    """Uses its argument three times, of which `memory` is two where it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(SIZE, SIZE) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        return F.scaled_dot_product_attention(self.q(x), self.k(memory), self.v(memory))


class Block(nn.Module):
    """What comes to `h` is added there, and handed on to `x` as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.layer = Attention(), nn.Linear(SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.attention(x)
        return h + self.layer(h).tanh() + h.sin()


class Embedded(nn.Module):
    """A layer under a part that is not compiled."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(SIZE, SIZE), inner, nn.Linear(SIZE, SIZE)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(SIZE, SIZE)
        self.layers = nn.ModuleList(Attention() for _ in range(3))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(SIZE, SIZE) / SIZE**0.5)

    def lower(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.weight).tanh(), self.weight)

    def upper(self, x: Tensor) -> Tensor:
        return F.linear((x @ self.weight).tanh(), self.weight)

    def broken(self, x: Tensor) -> Tensor:
        y = self.lower(x)
        torch._dynamo.graph_break()
        return self.upper(y)


def rows(i: int, *sizes: int) -> Tensor:
    generator = torch.Generator().manual_seed(i)
    return torch.randn(*(sizes or (3, 16, SIZE)), generator=generator).to(DEVICE)


def loss_of(y: Tensor) -> Tensor:
    return y.square().sum()


def same(model: nn.Module, step: Step, steps: int = 9, *, dynamic: bool | None = None) -> Any:
    """Gradients and what `step` returns are eager's in bits, in each step. `step` wraps what is to
    be compiled. Returns the report."""
    torch._dynamo.reset()
    wrapped: dict[Any, Any] = {}

    def compiles(fn: Any) -> Any:
        key = fn if isinstance(fn, nn.Module) else fn.__name__
        if key not in wrapped:
            wrapped[key] = compiled(fn, dynamic=dynamic)
        return wrapped[key]

    model = model.to(DEVICE)
    ours = copy.deepcopy(model)
    older = [graph.number for graph in gravure.report().graphs]
    for i in range(steps):
        expected, found = step(model, lambda fn: fn, i), step(ours, compiles, i)
        assert list(map(bits, found)) == list(map(bits, expected)), f"results of step {i}"
        pairs = zip(ours.named_parameters(), model.parameters(), strict=True)
        for (name, one), other in pairs:
            assert bits(one.grad) == bits(other.grad), f"gradient of {name} in step {i}"
        for each in (ours, model):
            each.zero_grad()
    return gravure.Report([g for g in gravure.report().graphs if g.number not in older])


def are_captured(report: gravure.Report, steps: int = 4) -> bool:
    """Whether the last programs of all graphs replay."""
    return all(p.stats["replays"] >= 2 * (steps - 1) for g in report.graphs for p in g.programs)


def beside(model: Any, wraps: Any, i: int) -> list[Tensor]:
    x = model.first(rows(i))
    y = x + wraps(model.inner)(x)
    loss_of(model.last(y)).backward()
    return [y]


@pytest.mark.parametrize("inner", [Attention, Block])
def test_a_block_around_a_compiled_layer(inner: Callable[[], nn.Module]) -> None:
    assert are_captured(same(Embedded(inner()), beside))


def test_it_is_one_node_in_every_call() -> None:
    model = Embedded(Attention()).to(DEVICE)
    call = compiled(model.inner)
    for i in range(6):
        x = model.first(rows(i))
        y = call(x)
        assert is_native(y)
        assert len(y.grad_fn.next_functions) == 6 + 3
        loss_of(x + y).backward()


def test_uses_in_front_of_a_graph_and_behind_it() -> None:
    def step(model: Any, wraps: Any, i: int) -> list[Tensor]:
        x = model.first(rows(i))
        before = x.sin()
        y = wraps(model.inner)(x)
        loss_of(model.last(y) + before + x.cos() + x.tanh()).backward()
        return [y]

    assert are_captured(same(Embedded(Block()), step))


def test_an_output_that_several_compiled_layers_read() -> None:
    def step(model: Any, wraps: Any, i: int) -> list[Tensor]:
        memory = model.encoder(rows(i))
        y = rows(100 + i)
        for layer in model.layers:
            y = wraps(layer)(y, memory).contiguous()  # else strides are symbolic on a GPU
        loss_of(y).backward()
        return [y]

    assert are_captured(same(Decoder(), step))


def test_a_parameter_on_both_sides_of_a_graph_break() -> None:
    def step(model: Any, wraps: Any, i: int) -> list[Tensor]:
        y = wraps(model.broken)(rows(i))
        loss_of(y).backward()
        return [y]

    report = same(Tied(), step)
    assert len(report.graphs) == 2 and are_captured(report)


def test_tied_weights_in_two_graphs() -> None:
    def step(model: Any, wraps: Any, i: int) -> list[Tensor]:
        y = wraps(model.upper)(wraps(model.lower)(rows(i)).sin())
        loss_of(y).backward()
        return [y]

    assert are_captured(same(Tied(), step))


def test_one_operator_that_takes_it_three_times() -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x, x, x).tanh() * 3

    assert are_captured(same(Embedded(Own()), beside))


def test_two_uses_of_which_one_is_added_as_it_is() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(SIZE, SIZE)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.layer(x).tanh()

    assert are_captured(same(Embedded(Residual()), beside))


def test_two_calls_of_one_graph_in_one_backward() -> None:
    def step(model: Any, wraps: Any, i: int) -> list[Tensor]:
        call = wraps(model.lower)
        one, other = call(rows(i)), call(rows(50 + i))
        (loss_of(one) + loss_of(other)).backward()
        return [one, other]

    same(Tied(), step, 12)


def test_a_use_outside_that_comes_late_and_goes() -> None:
    """The first backward in which it is there is right at once, and so are those without it."""

    def step(model: Any, wraps: Any, i: int) -> list[Tensor]:
        x = model.first(rows(i))
        y = wraps(model.inner)(x)
        loss_of(x + y if 6 <= i < 12 else y).backward()
        return [y]

    report = same(Embedded(Attention()), step, 16)
    assert replays(report) > 0


def test_what_needs_no_gradient() -> None:
    def step(model: Any, wraps: Any, i: int) -> list[Tensor]:
        model.first.requires_grad_(i >= 8)
        model.inner.k.weight.requires_grad_(i < 4)
        return beside(model, wraps, i)

    same(Embedded(Attention()), step, 16)


def test_a_result_that_nobody_differentiates() -> None:
    class Two(Attention):
        def forward(self, x: Tensor, memory: Tensor | None = None) -> Any:
            return super().forward(x), self.q(x).sin() + x

    def step(model: Any, wraps: Any, i: int) -> list[Tensor]:
        x = model.first(rows(i))
        y, z = wraps(model.inner)(x)
        # Both come after all in two steps.
        loss_of(x + y + z if i in (7, 8) else x + y).backward()
        return [y, z]

    same(Embedded(Two()), step, 14)


def test_micro_batches() -> None:
    def step(model: Any, wraps: Any, i: int) -> list[Tensor]:
        return [*beside(model, wraps, 2 * i), *beside(model, wraps, 2 * i + 1)]

    assert are_captured(same(Embedded(Attention()), step))


def test_gradients_of_chosen_inputs() -> None:
    def step(model: Any, wraps: Any, i: int) -> list[Tensor]:
        x = model.first(rows(i))
        y = x + wraps(model.inner)(x)
        chosen = [x, model.inner.q.weight] if i % 2 else [model.first.weight, x]
        return list(torch.autograd.grad(loss_of(model.last(y)), chosen))

    same(Embedded(Attention()), step, 10)


def test_retain_graph() -> None:
    def step(model: Any, wraps: Any, i: int) -> list[Tensor]:
        x = model.first(rows(i))
        y = x + wraps(model.inner)(x)
        loss = loss_of(model.last(y))
        if i % 3:
            loss.backward(retain_graph=True)
        loss.backward()
        return [y]

    same(Embedded(Attention()), step, 10)


def test_hooks_see_one_sum() -> None:
    def step(model: Any, wraps: Any, i: int) -> list[Tensor]:
        seen: list[Tensor] = []

        def hook(gradient: Tensor) -> Tensor:
            seen.append(gradient.clone())
            return gradient * 2

        x = model.first(rows(i))
        x.register_hook(hook)
        x.retain_grad()
        y = x + wraps(model.inner)(x)
        loss_of(model.last(y)).backward()
        assert len(seen) == 1 and x.grad is not None
        return [y, *seen, x.grad]

    same(Embedded(Attention()), step)


def test_a_leaf_that_is_used_outside_and_written_between_steps() -> None:
    def step(model: Any, wraps: Any, i: int) -> list[Tensor]:
        with torch.no_grad():
            model.weight.mul_(0.99)
        y = wraps(model.lower)(rows(i))
        loss_of(y @ model.weight + model.weight.sum()).backward()
        return [y]

    assert are_captured(same(Tied(), step))


def test_several_sizes() -> None:
    def step(model: Any, wraps: Any, i: int) -> list[Tensor]:
        x = model.first(rows(i, 3, 16 + i % 2, SIZE))
        y = x + wraps(model.inner)(x)
        loss_of(model.last(y)).backward()
        return [y]

    torch._dynamo.reset()
    same(Embedded(Attention()), step, 12, dynamic=False)


def test_in_bfloat16() -> None:
    def step(model: Any, wraps: Any, i: int) -> list[Tensor]:
        x = model.first(rows(i).bfloat16())
        y = x + wraps(model.inner)(x)
        loss_of(model.last(y)).backward()
        return [y]

    assert are_captured(same(Embedded(Block()).bfloat16(), step))


def test_under_autograd_functions_that_give_nothing_for_a_use() -> None:
    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, one: Tensor, other: Tensor) -> Tensor:
            return one * other

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            return gradient * 3 + gradient, None

    class Uses(Attention):
        def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
            return super().forward(x) + Half.apply(x, x * 1)

    same(Embedded(Uses()), beside)


def test_a_backward_that_begins_at_the_use_outside() -> None:
    def step(model: Any, wraps: Any, i: int) -> list[Tensor]:
        x = model.first(rows(i))
        y = x + wraps(model.inner)(x)
        y.backward(rows(300 + i))
        return [y]

    assert are_captured(same(Embedded(Attention()), step))


def test_several_roots_of_one_backward() -> None:
    def step(model: Any, wraps: Any, i: int) -> list[Tensor]:
        x = model.first(rows(i))
        y = wraps(model.inner)(x)
        torch.autograd.backward([loss_of(y), x], [None, rows(200 + i)])
        return [y]

    same(Embedded(Attention()), step)


def test_compiled_autograd() -> None:
    def step(model: Any, wraps: Any, i: int) -> list[Tensor]:
        x = model.first(rows(i))
        y = x + wraps(model.inner)(x)
        loss = loss_of(model.last(y))
        if i % 2:
            with torch._dynamo.compiled_autograd._enable(lambda graph: graph):
                loss.backward()
        else:
            loss.backward()
        return [y]

    same(Embedded(Attention()), step, 6)


def test_hooks_inside_of_a_graph() -> None:
    class Hooked(Attention):
        def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
            y = x * 2
            y.register_hook(lambda gradient: gradient + gradient.sin())
            return super().forward(x) + y + y.sin()

    same(Embedded(Hooked()), beside)


def test_a_checkpointed_part() -> None:
    class Parts(Block):
        def forward(self, x: Tensor) -> Tensor:
            return x.sin() + checkpoint(super().forward, x, use_reentrant=False)

    assert are_captured(same(Embedded(Parts()), beside))


def test_parameters_that_are_used_twice_under_autocast() -> None:
    def step(model: Any, wraps: Any, i: int) -> list[Tensor]:
        with torch.autocast(DEVICE, torch.bfloat16):
            y = wraps(model.lower)(rows(i))
        loss_of(y.float() @ model.weight).backward()
        return [y]

    same(Tied(), step)


class Whole(nn.Module):
    """A model whose embedding is its head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.block = nn.Embedding(20, SIZE), Block()

    def forward(self, words: Tensor) -> Tensor:
        y = F.linear(self.block(self.words(words)), self.words.weight)
        return F.cross_entropy(y.flatten(0, 1), words.flatten())


def test_a_whole_model_adds_inside() -> None:
    model = Whole().to(DEVICE)
    call = compiled(model)
    for i in range(7):
        call(rows(i, 3, 16).mul(3).long() % 20).backward()
        model.zero_grad()
    (graph,) = followed()
    (instance,) = graph.all_instances()
    stats = instance.program.stats()
    assert stats["uncaptured_steps"] == 4 and stats["captures"] == 2
    assert len(instance.program.outputs("backward")) == len(list(model.parameters()))
    # Its weight has two terms, which are known, and were not asked for.
    assert instance.beside is not None and instance.beside.apart is None


def test_what_the_wrapper_runs_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    model = Embedded(Attention()).to(DEVICE)
    call = compiled(model.inner, dynamic=True)
    with caplog.at_level(logging.WARNING, logger="gravure"):
        for i in range(5):
            x = model.first(rows(i, 3, 16 + i, SIZE))
            y = call(x)
            assert not is_native(y)
            loss_of(x + y).backward()
    told = [r.getMessage() for r in caplog.records if "several places" in r.getMessage()]
    assert len(told) == 1 and '"x"' in told[0] and "compile_step" in told[0]


def test_nothing_is_said_without_other_uses(caplog: pytest.LogCaptureFixture) -> None:
    model = Embedded(Attention()).to(DEVICE)
    call = compiled(model.inner, dynamic=True)
    with caplog.at_level(logging.WARNING, logger="gravure"):
        for i in range(5):
            loss_of(call(model.first(rows(i, 3, 16 + i, SIZE)))).backward()
    assert not [r for r in caplog.records if "several places" in r.getMessage()]


def test_terms_that_cannot_be_had_are_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Any) -> Any:
        raise RuntimeError("no such program")

    monkeypatch.setattr("gravure.calls.program_maker.with_terms_apart", fails)
    model = Embedded(Attention()).to(DEVICE)
    call = compiled(model.inner)
    with caplog.at_level(logging.WARNING, logger="gravure"):
        for i in range(6):
            x = model.first(rows(i))
            loss_of(x + call(x)).backward()
    told = [r.getMessage() for r in caplog.records if "several places" in r.getMessage()]
    assert len(told) == 1 and "no such program" in told[0]
    assert model.inner.q.weight.grad is not None

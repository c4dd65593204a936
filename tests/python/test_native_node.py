"""A compiled graph as one node of autograd's, which runs its backward without Python."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import gravure
import numpy as np
import pytest
import torch
import torch.nn as nn
from native_steps import Parts, Saves, is_native, parts, trains, warm
from running import bits, need_library
from torch import Tensor
from training import Mlp, Net, Normed, compiled, images, rows, same_as_eager, state_of

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.parametrize("model", [Mlp, Net, lambda: Mlp(dropout=0.3)])
def test_a_plain_model_trains_by_one_node(model: Callable[[], nn.Module]) -> None:
    report = trains(model(), native=True)
    stats = report.graphs[0].programs[0].stats
    assert stats["replays"] >= 8 and stats["steps"] == 14


def test_numbers_that_are_read_on_the_host_reach_the_backward() -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        report = trains(Parts(), parts, native=True)
    text = str(report)
    assert "host-sync" in text and report.graphs[0].programs[0].stats["replays"] > 0


def test_running_statistics_are_written_and_counted() -> None:
    trains(Normed(), images, native=True)
    torch._dynamo.reset()
    model = Normed()
    call = compiled(model)
    for i in range(7):
        before = model.norm.running_mean._version
        result = call(*images(i))
        assert model.norm.running_mean._version > before, i
        assert is_native(result)
        result.sum().backward()


def test_what_requires_capture_trains_by_one_node() -> None:
    options = {"require_capture": True, "min_partition_size": 1}
    report = trains(Mlp(), native=True, options=options)
    assert report.graphs[0].programs[0].stats["uncaptured_steps"] == 4


class Several(nn.Module):
    """Results of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        y = self.layer(x).tanh()
        z = self.other(x).sin() + y
        return y, None, z, 3, (z > 0), z.detach() * 2, x.long()


def test_results_of_all_kinds() -> None:
    trains(Several(), native=True)
    model = Several()
    call = compiled(model)
    for i in range(5):
        found = call(*rows(i))
    assert [isinstance(t, Tensor) and t.requires_grad for t in found] == [
        *(True, False, True, False, False, False, False)
    ]
    assert found[1] is None and found[3] == 3


@pytest.mark.parametrize("which", [(0,), (2,), (2, 0)])
def test_a_backward_through_some_of_the_results(which: tuple[int, ...]) -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        optimizer.zero_grad()
        found = model(*batch)
        for i in which:
            found[i].square().sum().backward(retain_graph=True)
        return [found[i].detach() for i in which]

    # Gradients that AOTAutograd says are zero are None, too.
    same_as_eager(Several(), rows, step)


class Heads(nn.Module):
    """A loss, and what people return beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.other = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        hidden = self.body(x).relu()
        scores = self.head(hidden)
        return scores.square().mean(), scores, hidden, self.other(hidden).exp()


Uses = Callable[[int], tuple[int, ...]]


@pytest.mark.parametrize(
    "uses",
    [
        lambda i: (0,),
        lambda i: (1, 3),
        lambda i: (0,) if i < 6 else (0, 1),  # what had no gradient has one
        lambda i: (0, 3) if i < 6 else (0,),
        lambda i: ((0,), (0, 2), (3,))[i % 3],
    ],
    ids=["loss", "others", "later more", "later fewer", "in turns"],
)
@pytest.mark.parametrize("clear", [True, False])
def test_results_that_get_no_gradient_cost_none(uses: Uses, clear: bool) -> None:
    """Parameters that the used ones do not reach have none, and no optimizer steps with zeros."""
    step = 0

    def train(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        nonlocal step
        optimizer.zero_grad(set_to_none=clear)
        found = model(*batch)
        sum(found[i].float().mean() for i in uses(step // 2)).backward()
        step += 1
        optimizer.step()
        return [value.detach() for value in found]

    report = same_as_eager(Heads(), rows, train, steps=14)
    (graph,) = report.graphs
    assert sum(program.stats["replays"] for program in graph.programs) > 0
    if uses(0) == uses(9) == (0,):
        (program,) = graph.programs
        assert program.stats["arena_bytes"] < _arena_of_all(rows)


def _arena_of_all(batches: Any) -> int:
    torch._dynamo.reset()
    call = compiled(Heads())
    for i in range(6):
        sum(value.float().mean() for value in call(*batches(i))).backward()
    return gravure.report().graphs[-1].programs[0].stats["arena_bytes"]


def test_a_gradient_that_had_none_before_is_right_where_the_graph_is_kept() -> None:
    model = Heads()
    call = compiled(model)
    for i in range(6):
        call(*rows(i))[0].backward()
    model.zero_grad()
    batch = rows(7)
    ours, theirs = call(*batch), model(*batch)
    for found in (ours, theirs):
        found[0].backward(retain_graph=True)
    once = [bits(p.grad) for p in model.parameters() if p.grad is not None]
    assert len(once) == 4
    expected = torch.autograd.grad(theirs[3].sum() + theirs[1].sum(), list(model.parameters()))
    found = torch.autograd.grad(ours[3].sum() + ours[1].sum(), list(model.parameters()))
    assert list(map(bits, found)) == list(map(bits, expected))


def test_results_that_get_no_gradient_beside_changes_of_the_module() -> None:
    model = Heads()
    twin, call = copy.deepcopy(model), compiled(model)
    for i in range(16):
        (x,) = rows(i)
        if i == 6:
            for each in (model, twin):
                each.body.weight = nn.Parameter(each.body.weight.detach() * 1.5)
        if i == 9:
            assert gravure.drop_captures(model) == 1
        if i == 12:
            state = {name: value.clone() for name, value in twin.state_dict().items()}
            model.load_state_dict(state, assign=True)
        for side, run in ((model, call), (twin, twin)):
            side.zero_grad()
            run(x)[0].backward()
        assert state_of(model) == state_of(twin), i
    gone = weakref.ref(model)
    del model, side, call, run, each
    gc.collect()
    assert gone() is None


def test_gradients_of_some_arguments() -> None:
    model = Several()
    call = compiled(model)
    for i in range(6):
        found = []
        for run in (call, model):
            torch.manual_seed(i)
            x = torch.randn(5, 8, requires_grad=True)
            loss = run(x)[2].square().sum()
            grads = torch.autograd.grad(loss, (x, model.other.weight, model.layer.bias))
            found.append([bits(g) for g in grads])
        assert found[0] == found[1]
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("channels_last", [False, True])
def test_gradients_in_any_order_of_memory(channels_last: bool) -> None:
    conv = nn.Conv2d(3, 6, 3)
    kind = torch.channels_last if channels_last else torch.contiguous_format

    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        optimizer.zero_grad()
        result = model(*batch)
        shape = result.shape[1], result.shape[0], *result.shape[2:]
        for way in (torch.randn(shape).transpose(0, 1), torch.ones(()).expand(result.shape)):
            result.backward(way, retain_graph=True)
        result.backward(torch.randn(result.shape).to(memory_format=torch.channels_last))
        return result.detach()

    class Conv(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = conv

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x).relu() * 2

    def batches(i: int) -> tuple[Tensor]:
        return (images(i)[0].to(memory_format=kind),)

    same_as_eager(Conv(), batches, step, steps=5)


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("what", ["parameter", "argument", "viewed parameter"])
def test_a_write_before_the_backward_is_autograds_error(steps: int, what: str) -> None:
    model, x = nn.Sequential(Saves(), Mlp()), torch.randn(5, 8, requires_grad=True)
    call = warm(model, x, steps)
    result = call(x)
    viewed = model[1].first.weight
    with torch.no_grad():
        {"parameter": model[0].scale, "argument": x, "viewed parameter": viewed}[what].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
    call(x).sum().backward()


@pytest.mark.parametrize("options", [{}, {"uncaptured": True}], ids=["captured", "uncaptured"])
def test_a_write_into_a_saved_result(options: dict[str, Any]) -> None:
    """A captured forward gives the caller a copy of what it saves, which counts with it."""
    model, x = Saves(), torch.randn(5, 8, requires_grad=True)
    call = warm(model, x, options=options)
    result = call(x)
    result.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


@pytest.mark.parametrize("steps", [1, 5])
def test_retained_graphs_and_what_comes_after(steps: int) -> None:
    model, x = Saves(), torch.randn(5, 8, requires_grad=True)
    call = warm(model, x, steps)
    found = []
    for run in (call, model):
        loss = run(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward()
        found.append((bits(x.grad), state_of(model)))
        x.grad, model.scale.grad = None, None
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    assert found[0] == found[1]


class ReadsItsStatistics(nn.Module):
    """A buffer that the forward writes, and saves for the backward behind that."""

    def __init__(self, *, views: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.views = views

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = (self.norm(x) * self.norm.running_mean).sin()
        return (y, y.view(-1)) if self.views else (y,)


@pytest.mark.parametrize("views", [False, True], ids=["native", "wrapped"])
def test_what_the_forward_wrote_and_saved_is_not_taken_for_written_by_the_backward(
    *, views: bool
) -> None:
    model = ReadsItsStatistics(views=views)
    twin = copy.deepcopy(model)
    call = torch.compile(twin, backend="gravure")
    with torch._functorch.config.patch(donated_buffer=False):
        for i in range(6):
            torch.manual_seed(i)
            x = torch.randn(5, 8)
            for run in (model, call):
                loss = run(x)[0].square().sum()
                version = twin.norm.running_mean._version
                loss.backward(retain_graph=True)
                loss.backward()
                assert twin.norm.running_mean._version == version
            assert state_of(twin) == state_of(model)
            assert bits(twin.norm.weight.grad) == bits(model.norm.weight.grad)


def test_two_forwards_and_their_backwards_in_any_order() -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        optimizer.zero_grad()
        results = [model(batch[0] * k) for k in (1, 2, 3)]
        for k in (1, 2, 0):
            results[k].square().mean().backward()
        optimizer.step()
        return [result.detach() for result in results]

    same_as_eager(Mlp(), rows, step, steps=7)


@pytest.mark.parametrize("through", ["all", "x"])
@pytest.mark.parametrize("fn", [lambda x: x.exp(), lambda x: x.exp().exp() * 2, lambda x: x * x[0]])
def test_a_gradient_of_a_gradient_is_an_error(fn: Callable[..., Any], through: str) -> None:
    model = Applied(fn)
    x = torch.randn(5, 8, requires_grad=True)
    call = warm(model, x)
    (gradient,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
    assert gradient.requires_grad
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        (torch.autograd.grad(gradient.sum(), x) if through == "x" else gradient.sum().backward())


class Applied(nn.Module):
    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x)


def test_a_gradient_that_depends_on_nothing_needs_no_graph() -> None:
    model = nn.Linear(8, 8, bias=False)

    def fn(x: Tensor) -> Tensor:
        return model(x).detach() + x * 2

    call = compiled(fn)
    for _ in range(3):
        x = torch.randn(5, 8, requires_grad=True)
        result = call(x)
        (gradient,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        assert not gradient.requires_grad and bits(gradient) == bits(torch.full((5, 8), 2.0))
    assert is_native(result)
    tangent = torch.ones(5, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(call(x), x, tangent, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()


@pytest.mark.parametrize("uncaptured", [False, True])  # there the saved result is the caller's
@pytest.mark.parametrize("how", ["dropped", "ran", "failed"])
def test_what_is_saved_is_let_go_of(how: str, uncaptured: bool) -> None:
    model, x = Saves(), torch.randn(5, 8)
    call = warm(model, x, options={"uncaptured": uncaptured})
    gone: list[bool] = []
    array = np.ones((5, 8), dtype=np.float32)
    weakref.finalize(array, gone.append, True)
    x = torch.from_numpy(array)
    del array
    result = call(x)
    assert is_native(result)
    if how == "failed":
        x.add_(1)
    del x
    assert not gone
    if how == "ran":
        result.sum().backward()
    elif how == "failed":
        with pytest.raises(RuntimeError, match="inplace"):
            result.sum().backward()
        del result
    else:
        del result
    assert gone == [True]


def test_a_dropped_graph_costs_no_capture() -> None:
    model, x = Saves(), torch.randn(5, 8)
    call = warm(model, x)
    stats = gravure.report().graphs[-1].programs[0].stats
    for _ in range(3):
        call(x)
    after = gravure.report().graphs[-1].programs[0].stats
    assert after["replays"] == stats["replays"] + 3
    assert after["uncaptured_steps"] == stats["uncaptured_steps"]

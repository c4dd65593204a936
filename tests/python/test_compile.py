"""torch.compile(backend="gravure") trains as eager does, bit for bit, whatever a user does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from running import bits, need_library
from torch import Tensor
from torch._dynamo import compiled_autograd
from torch.testing._internal.two_tensor import TwoTensor
from training import (
    Checkpointed,
    Mlp,
    Normed,
    Side,
    images,
    replays,
    rows,
    same_as_eager,
    state_of,
    train_step,
)

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


def test_two_layers_are_captured_and_replayed() -> None:
    report = same_as_eager(Mlp(), rows)
    assert len(report.graphs) == 1 and not report.graphs[0].failure
    program = report.graphs[0].programs[0]
    assert program.partitions == {"forward": ["captured"], "backward": ["captured"]}
    assert program.stats["replays"] == 10  # two warm-ups of each entry, then five of seven steps


def test_dropout_draws_what_eager_draws() -> None:
    assert replays(same_as_eager(Mlp(0.15), rows))


def test_running_statistics_are_written() -> None:
    assert replays(same_as_eager(Normed(), images))


def test_activation_checkpointing_keeps_its_masks() -> None:
    report = same_as_eager(Checkpointed(3), rows)
    assert replays(report)
    assert any("uncapturable-rng" in node for node in report.graphs[0].programs[0].host_nodes)


def test_graph_breaks_and_several_frames() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([Mlp(), nn.Linear(4, 4)])

        def forward(self, x: Tensor) -> Tensor:
            y = self.parts[0](x)
            torch._dynamo.graph_break()
            return self.parts[1](y.relu())

    report = same_as_eager(Broken(), rows)
    assert len(report.graphs) == 2 and all(graph.programs for graph in report.graphs)


class Aliases(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.linear(x)
        wide = y.expand(2, *y.shape)
        return y.t(), y, y.view(-1), x.view(-1), wide, self.linear.weight, x[:, ::2] + 0, wide + 1


def _inference(model: Any, _: Any, batch: tuple[Tensor, ...]) -> Any:
    with torch.no_grad():
        return model(*batch)


@pytest.mark.parametrize("step", [train_step, _inference])
def test_outputs_that_are_views(step: Any) -> None:
    same_as_eager(Aliases(), rows, step)


@pytest.mark.parametrize("steps", [1, 6])
def test_outputs_share_memory_as_in_eager(steps: int) -> None:
    class Shared(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            y = x + 1
            return y, y.view(-1), y[1:], (x * 2).expand(3, *x.shape)

    compiled = torch.compile(Shared(), backend="gravure")
    for _ in range(steps):
        with torch.no_grad():
            whole, flat, tail, wide = compiled(torch.zeros(4, 2))
    assert wide.stride() == (0, 2, 1)
    flat[7] = 5
    assert whole[3, 1] == 5 and tail[2, 1] == 5


def test_a_buffer_and_an_argument_are_written_in_place() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.register_buffer("mean", torch.zeros(8))
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

        def forward(self, x: Tensor) -> Tensor:
            self.mean.mul_(0.9).add_(x.mean(0))
            self.count += 1
            x.mul_(2)
            return self.linear(x + self.mean)

    same_as_eager(Writes(), rows)


def test_inference_without_a_gradient() -> None:
    report = same_as_eager(Mlp(), rows, _inference)
    assert report.graphs[0].programs[0].partitions == {"step": ["captured"]}


@pytest.mark.parametrize("model", [Mlp(0.2), Normed()])
def test_evaluation_between_training_steps(model: nn.Module) -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        trained = train_step(model, optimizer, batch)
        model.eval()
        with torch.no_grad():
            evaluated = model(*batch)
        model.train()
        return trained, evaluated

    batches = images if isinstance(model, Normed) else rows
    report = same_as_eager(model, batches, step)
    assert len(report.graphs) == 2 and all(g.programs[0].stats["replays"] for g in report.graphs)


def test_gradients_accumulate_over_micro_batches() -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        optimizer.zero_grad()
        losses = []
        for k in range(3):
            loss = model(batch[0] + k).square().mean() / 3
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        return losses

    assert replays(same_as_eager(Mlp(), rows, step)) > 30


@pytest.mark.parametrize("reverse", [False, True])
def test_two_forwards_before_a_backward(reverse: bool) -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        optimizer.zero_grad()
        losses = [model(x).square().mean() for x in (batch[0], batch[0] * 2)]
        for loss in reversed(losses) if reverse else losses:
            loss.backward()
        optimizer.step()
        return [loss.detach() for loss in losses]

    assert replays(same_as_eager(Mlp(0.2), rows, step))


def test_one_backward_through_two_forwards() -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        optimizer.zero_grad()
        loss = (model(batch[0]) + model(batch[0] * 2)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    same_as_eager(Mlp(), rows, step)


def test_retain_graph_keeps_saved_values() -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        optimizer.zero_grad()
        loss = model(*batch).square().mean()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    assert replays(same_as_eager(Mlp(), rows, step))


def test_double_backward_is_an_error() -> None:
    model = torch.compile(Mlp(), backend="gravure")
    x = torch.randn(5, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.project(x)[None].chunk(3, dim=-1)
        return F.scaled_dot_product_attention(query, key, value, dropout_p=0.3)[0]


@pytest.mark.parametrize(
    "last",
    [
        lambda: nn.Identity(),
        # On a CPU their means are float, though PyTorch traces bfloat16.
        lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
        # Its backward computes in float, and with autocast would not.
        lambda: Attends(),
    ],
    ids=["mlp", "layer-norm", "batch-norm", "attention"],
)
def test_autocast(last: Any) -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            result = model(*batch)
        loss = result.float().square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach(), result

    assert replays(same_as_eager(nn.Sequential(Mlp(0.1), last()), rows, step))


def test_results_that_are_held_stay_as_they_are() -> None:
    model = torch.compile(Mlp(), backend="gravure", options={"poison": True})
    held = []
    for i in range(7):
        result = model(torch.full((5, 8), float(i)))
        result.sum().backward()
        held.append((result, bits(result)))
        assert all(bits(tensor) == before for tensor, before in held)


def _triple(parameter: Tensor) -> None:
    parameter.grad.mul_(3)


def test_hooks_on_parameters_run() -> None:
    model, twin = Mlp(), Mlp()
    twin.load_state_dict(model.state_dict())
    compiled = torch.compile(model, backend="gravure")
    for each in (model, twin):
        each.first.weight.register_hook(lambda gradient: gradient * 2)
        each.second.weight.register_post_accumulate_grad_hook(_triple)
    for _ in range(5):
        x = torch.randn(5, 8)
        for each, call in ((model, compiled), (twin, twin)):
            each.zero_grad()
            call(x).square().sum().backward()
        assert state_of(model) == state_of(twin)


def test_compiled_autograd() -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        with compiled_autograd._enable(torch.compile(backend="gravure")):
            return train_step(model, optimizer, batch)

    model = Mlp()
    twin = copy.deepcopy(model)
    sides = Side(model, torch.compile(model, backend="gravure")), Side(twin, twin)
    for i in range(5):
        batch = rows(i)
        found = sides[0].run(step, batch, i)
        assert found == sides[1].run(train_step, batch, i) and state_of(model) == state_of(twin)


def test_tensor_subclasses() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend="gravure", options={"poison": True})
    for _ in range(6):
        x = torch.randn(5, 8)
        found = []
        for each, call in ((model, compiled), (twin, twin)):
            each.zero_grad()
            result = call(TwoTensor(x, x * 2))
            result.sum().backward()
            grad = each[0].weight.grad
            found.append([bits(t) for t in (result.a, result.b, grad.a, grad.b)])
        assert found[0] == found[1]


def test_gradients_never_share_memory() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
            self.flat = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return (self.a + self.b + self.flat.view(2, 2)) * x

    model = Sum()
    compiled = torch.compile(model, backend="gravure")
    for _ in range(6):
        model.zero_grad()
        compiled(torch.full((2, 2), 3.0)).sum().backward()
        model.a.grad.zero_()
        assert model.b.grad.eq(3).all() and model.flat.grad.eq(3).all()


def test_micro_batches_with_gradients_kept() -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        optimizer.zero_grad(set_to_none=False)
        for k in range(2):
            model(batch[0] + k).square().mean().backward()
        optimizer.step()

    report = same_as_eager(Mlp(0.1), rows, step, steps=9)
    assert replays(report) > 20

"""Parameters or buffers that swap between a few places: a capture for each, in eager's bits."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from gravure.calls.reports import ProgramReport
from running import bits, need_library
from torch import Tensor

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPOCHS, LATE = 7, 3  # from then on nothing runs uncaptured

Call = Callable[[Tensor], Tensor]
Loop = Callable[[nn.Module, Call, int, dict[str, Any]], list[Tensor]]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 16)
        self.register_buffer("scale", torch.full((16,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x))) * self.scale


def batch(seed: int) -> Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def train(model: nn.Module, call: Call, seed: int) -> Tensor:
    loss = call(batch(seed)).square().mean()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.05 * p.grad
            p.grad = None
    return loss.detach()


def averages_swapped_in(
    model: nn.Module, call: Call, epoch: int, state: dict[str, Any]
) -> list[Tensor]:
    """`p.data` is that of the averages while the model is evaluated."""
    averages = state.setdefault("averages", [p.detach().clone() for p in model.parameters()])
    found = [train(model, call, 10 * epoch + i) for i in range(4)]
    for average, p in zip(averages, model.parameters(), strict=True):
        average.lerp_(p.detach(), 0.5)
    weights = [p.data for p in model.parameters()]
    for average, p in zip(averages, model.parameters(), strict=True):
        p.data = average
    with torch.no_grad():
        found += [call(batch(1000 + 10 * epoch + i)) for i in range(3)]
    for weight, p in zip(weights, model.parameters(), strict=True):
        p.data = weight
    return found


def averages_trained_in_turn(
    model: nn.Module, call: Call, epoch: int, state: dict[str, Any]
) -> list[Tensor]:
    """Two sets of weights, each trained a step at a time, forward and backward."""
    others = state.setdefault("others", [p.detach().clone() for p in model.parameters()])
    found = []
    for i in range(4):
        found.append(train(model, call, 10 * epoch + i))
        for j, p in enumerate(model.parameters()):
            others[j], p.data = p.data, others[j]
    return found


def buffer_written_while_the_other_is_read(
    model: nn.Module, call: Call, epoch: int, state: dict[str, Any]
) -> list[Tensor]:
    """Two tensors in turn are the module's buffer."""
    buffers = state.setdefault("buffers", [model.scale, model.scale.clone()])
    found = []
    for i in range(4):
        model.scale = buffers[i % 2]
        buffers[(i + 1) % 2].copy_(torch.full((16,), 0.1 * (epoch + i)))
        found.append(train(model, call, 10 * epoch + i))
    return found


def buffer_data_in_turn(
    model: nn.Module, call: Call, epoch: int, state: dict[str, Any]
) -> list[Tensor]:
    """The same, by the memory of one tensor: three places."""
    buffers = state.setdefault("buffers", [model.scale.clone() * k for k in (1, 2, 3)])
    found = []
    for i in range(6):
        model.scale.data = buffers[i % 3]
        found.append(train(model, call, 10 * epoch + i))
    return found


LOOPS: list[Loop] = [
    averages_swapped_in,
    averages_trained_in_turn,
    buffer_written_while_the_other_is_read,
    buffer_data_in_turn,
]


def programs() -> list[ProgramReport]:
    return [p for graph in gravure.report().graphs for p in graph.programs]


def counted() -> tuple[int, ...]:
    """Runs so far, those of them that were uncaptured, and captures."""
    stats = [p.stats for p in programs()]
    return tuple(sum(s[k] for s in stats) for k in ("steps", "uncaptured_steps", "captures"))


def run(loop: Loop, compiled: bool) -> tuple[list[Any], list[tuple[int, ...]]]:
    torch.manual_seed(0)
    model = Net().to(DEVICE)
    call = torch.compile(model, backend="gravure", options={"poison": True}) if compiled else model
    state: dict[str, Any] = {}
    found, counts = [], []
    for epoch in range(EPOCHS):
        counts.append(counted())
        found += [bits(t) for t in loop(model, call, epoch, state)]
        found += [bits(p) for p in model.parameters()]
    counts.append(counted())
    return found, counts


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_each_place_is_captured_once_and_replayed_in_eagers_bits(loop: Loop) -> None:
    expected, _ = run(loop, compiled=False)
    found, counts = run(loop, compiled=True)
    assert found == expected
    assert counts[-1][0] > counts[LATE][0]
    assert counts[-1][1:] == counts[LATE][1:]  # nothing uncaptured, nothing captured again


def test_the_report_says_for_how_many_places_a_program_is_captured() -> None:
    model = Net().to(DEVICE)
    call = torch.compile(model, backend="gravure")
    state: dict[str, Any] = {}
    for epoch in range(4):
        averages_trained_in_turn(model, call, epoch, state)
    said = str(gravure.report())
    assert "captured for 2 sets of addresses" in said


def test_averages_that_are_gone_take_their_captures_along() -> None:
    """Law 4, for each set: what stands beside the current captures keeps no memory."""
    model = Net().to(DEVICE)
    call = torch.compile(model, backend="gravure")
    state: dict[str, Any] = {}
    for epoch in range(4):
        averages_trained_in_turn(model, call, epoch, state)
    assert [p.stats["capture_sets"] for p in programs()] == [2]
    gone = [weakref.ref(t) for t in state["others"]]
    state.clear()
    assert all(each() is None for each in gone)
    for i in range(70):
        train(model, call, i)
    assert [p.stats["capture_sets"] for p in programs()] == [1]


def test_a_model_that_is_gone_takes_all_sets_along() -> None:
    model = Net().to(DEVICE)
    call = torch.compile(model, backend="gravure")
    state: dict[str, Any] = {}
    for epoch in range(4):
        averages_swapped_in(model, call, epoch, state)
    twin = copy.deepcopy(model)
    assert gravure.drop_captures(model) >= 1
    fresh: dict[str, Any] = {"averages": [a.clone() for a in state["averages"]]}
    one = averages_swapped_in(model, call, 9, state)
    other = averages_swapped_in(twin, twin, 9, fresh)
    assert [bits(t) for t in one] == [bits(t) for t in other]


def emptied_between_uses(compiled: bool) -> tuple[list[Any], int]:
    """Losses and gradients, and how many runs were replays.

    As FSDP2 does: storages stay, and have memory while they are used, wherever there is some.
    """
    torch.manual_seed(0)
    model = Net().to(DEVICE)
    call = torch.compile(model, backend="gravure") if compiled else model
    parameters = list(model.parameters())
    values = [p.detach().clone() for p in parameters]

    def empty() -> None:
        for p in parameters:
            p.untyped_storage().resize_(0)

    def fill(order: list[int]) -> None:
        for i in order:
            p = parameters[i]
            p.untyped_storage().resize_(values[i].nbytes)
            with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(p):
                p.copy_(values[i])

    found = []
    for step in range(40):
        order = list(range(len(parameters)))
        backwards = order[::-1] if step % 3 == 1 else order
        empty()
        fill(order if step % 5 < 2 else order[::-1])
        loss = call(batch(step)).square().mean()
        empty()
        fill(backwards)
        loss.backward()
        found.append(bits(loss))
        for value, p in zip(values, parameters, strict=True):
            value -= 0.05 * p.grad
            found.append(bits(p.grad))
            p.grad = None
    return found, sum(p.stats["replays"] for p in programs())


def test_storages_that_are_emptied_between_uses() -> None:
    """What a forward saves are views of parameters, whose storages exchange their memory."""
    expected, _ = emptied_between_uses(compiled=False)
    found, replays = emptied_between_uses(compiled=True)
    assert found == expected
    # Whether the CPU's memory is there again is up to the C library and to whoever else allocates.
    assert replays > (20 if DEVICE == "cuda" else 0)

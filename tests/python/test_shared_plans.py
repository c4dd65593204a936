"""Programs of one text, for several calls or modules, are read and planned once, and else apart."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from gravure.calls import program_maker
from gravure.library.load import program_class
from running import DEVICE, bits, need_library
from torch import Tensor
from training import TwoLayers, batch

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


class Net(TwoLayers):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.gelu(self.first(x)))


class WithScores(Net):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = super().forward(x)
        return scores.square().mean(), scores


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Texts that programs were read from."""
    texts: list[str] = []
    real = program_class()

    class Reading:
        @staticmethod
        def of_text(text: str, device: str, options: dict[str, str]) -> Any:
            texts.append(text)
            return real.of_text(text, device, options)

    monkeypatch.setattr(program_maker, "program_class", Reading)
    return texts


def step(model: nn.Module, call: Any, seed: int, calls: int) -> list[Any]:
    """`calls` forwards, then their backwards; what they return, and the gradients."""
    model.zero_grad()
    found = [call(batch(10 * seed + i)) for i in range(calls)]
    losses = [each[0] if isinstance(each, tuple) else each.square().mean() for each in found]
    for loss in losses:
        loss.backward()
    return [*map(bits, losses), *(bits(p.grad) for p in model.parameters())]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("bundle", [False, True])
def test_calls_in_flight_are_of_one_plan(
    read: list[str], dynamic: bool, bundle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not bundle:  # autograd sees AOTAutograd's node
        monkeypatch.setattr(program_maker, "native_call", lambda *_: None)
    model = Net().to(DEVICE)
    call = torch.compile(model, backend="gravure", dynamic=dynamic, options={"poison": True})
    for i in range(8):
        calls = 1 if i < 3 else 4
        assert step(model, call, i, calls) == step(model, model, i, calls)
    programs = gravure.report().graphs[-1].programs
    assert len(programs) == 4
    assert all(each.stats["replays"] > 0 for each in programs)
    assert len(read) == 1


def test_backwards_without_some_gradients_are_of_one_plan(read: list[str]) -> None:
    model = WithScores().to(DEVICE)
    call = torch.compile(model, backend="gravure", options={"poison": True})
    for i in range(8):
        assert step(model, call, i, 3) == step(model, model, i, 3)
    assert len(gravure.report().graphs[-1].programs) == 3
    assert len(read) == 2  # with all gradients, and without the scores'
    # One that comes after all: the first program's backward, which each of them still has.
    for compiled in (call, model):
        model.zero_grad()
        both = [compiled(batch(i)) for i in range(3)]
        for loss, scores in both:
            (loss + scores.sum()).backward()
        found = [bits(p.grad) for p in model.parameters()]
        if compiled is call:
            got = found
    assert got == found
    assert len(read) == 2


def test_modules_of_one_class_are_of_one_plan_and_go_alone(read: list[str]) -> None:
    models = [Net().to(DEVICE) for _ in range(3)]
    calls = [torch.compile(model, backend="gravure") for model in models]
    for i in range(5):
        for model, call in zip(models, calls, strict=True):
            assert step(model, call, i, 2) == step(model, model, i, 2)
    assert len(gravure.report().graphs[-1].programs) == 6
    assert len(read) == 1
    # The one whose program was read holds nothing more than the others do.
    gone = weakref.ref(models[0].first.weight)
    del models[0], calls[0], model, call
    gc.collect()
    assert gone() is None
    assert len(gravure.report().graphs[-1].programs) == 4
    for i in range(5):
        for model, call in zip(models, calls, strict=True):
            assert step(model, call, i, 3) == step(model, model, i, 3)
    assert len(gravure.report().graphs[-1].programs) == 6
    assert len(read) == 1


def test_other_sizes_are_planned_apart(read: list[str]) -> None:
    model = Net().to(DEVICE)
    call = torch.compile(model, backend="gravure", dynamic=True)
    for i in range(4):
        for rows in (8, 24):
            model.zero_grad()
            losses = [call(batch(i, rows)).square().mean() for _ in range(2)]
            sum(losses).backward()
    assert len(gravure.report().graphs[-1].programs) == 4
    assert len(read) == 2


_TEXT = """gravure 1
graph step(%w : Float(4, strides=[1], device=cpu) {parameter "w"},
           %x : Float(4, strides=[1], device=cpu) {user_input "x"}):
  %a : Float(4, strides=[1], device=cpu) = aten::mul.Tensor(%w, %x)
  %y : Float(4, strides=[1], device=cpu) = aten::add.Tensor(%a, %x)
  return (%y {output "y"})
"""


def test_what_is_told_of_one_program_is_not_the_others() -> None:
    device = "host" if DEVICE == "cpu" else DEVICE
    first = program_class().of_text(_TEXT, device, {"poison": "1"})
    w, x = torch.randn(4, device=DEVICE), torch.randn(4, device=DEVICE)
    first.bind("step", [0], [w])
    for _ in range(4):
        first.run("step", [x])
    second = first.again()
    assert second.stats()["steps"] == 0
    assert second.partition_states("step") == ["cold"]
    assert second.plan() != first.plan()  # without the memory, which is not planned yet
    assert second.text() == first.text()
    with pytest.raises(RuntimeError, match="takes 2 inputs that are not bound"):
        second.run("step", [x])
    held = weakref.ref(w)
    other = torch.randn(4, device=DEVICE)
    second.bind("step", [0], [other])
    first.shutdown()
    del first, w
    assert held() is None
    for _ in range(4):
        (found,) = second.run("step", [x])
        assert bits(found) == bits(other * x + x)
    assert second.stats()["replays"] > 0


def test_a_shadow_compares_in_each_of_them() -> None:
    device = "host" if DEVICE == "cpu" else DEVICE
    first = program_class().of_text(_TEXT, device, {"shadow": "1"})
    w, x = torch.randn(4, device=DEVICE), torch.randn(4, device=DEVICE)
    for program in (first, first.again()):
        for _ in range(4):
            program.run("step", [w, x])
        assert program.stats()["compared"] == 4
        assert program.stats()["different"] == 0


_PAIR = """gravure 1
graph forward(%w : Float(4, strides=[1], device=cpu) {parameter "w"},
              %x : Float(4, strides=[1], device=cpu) {user_input "x"}):
  %a : Float(4, strides=[1], device=cpu) = aten::mul.Tensor(%w, %x)
  %b : Float(4, strides=[1], device=cpu) = aten::exp(%a)
  %y : Float(4, strides=[1], device=cpu) = aten::add.Tensor(%b, %x)
  return (%y {output "y"}, %b {saved "b"})
graph backward(%b : Float(4, strides=[1], device=cpu) {saved "b"},
               %g : Float(4, strides=[1], device=cpu) {tangent "g"},
               %i : Long(4, strides=[1], device=cpu) {user_input "i"}):
  %c : Float(4, strides=[1], device=cpu) = aten::mul.Tensor(%b, %g)
  %d : Float(4, strides=[1], device=cpu) = aten::index_select(%c, 0, %i)
  %e : Float(4, strides=[1], device=cpu) = aten::mul.Tensor(%d, %c)
  return (%e {gradient "w"})
"""


@pytest.mark.skipif(DEVICE != "cpu", reason="an index out of range ends a GPU's process")
def test_a_backward_that_fails_leaves_the_shared_plan_of_its_forward() -> None:
    """Forwards alone are planned where their backward never comes, by one as by all."""
    first = program_class().of_text(_PAIR, "host", {"poison": "1"})
    w, x = torch.randn(4), torch.randn(4)
    for _ in range(8):
        first.run("forward", [w, x])
    second = first.again()
    second.warm_up_with(first)
    y, b = second.run("forward", [w, x])
    with pytest.raises(IndexError, match="out of range"):
        second.run("backward", [b, torch.ones(4), torch.full((4,), 99)])
    del y, b
    for _ in range(8):
        assert bits(second.run("forward", [w, x])[0]) == bits((w * x).exp() + x)
    assert second.stats()["replays"] > 0

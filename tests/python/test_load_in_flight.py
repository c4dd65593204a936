"""Calls of an exported forward before its backward: instances, chosen by what is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from running import DEVICE, bits, need_library
from torch import Tensor
from training import TwoLayers, batch

need_library()


class Net(TwoLayers):
    def forward(self, x: Tensor) -> Tensor:
        return F.mse_loss(self.second(F.gelu(self.first(x))), x)


@pytest.fixture
def exported(tmp_path: Path) -> tuple[nn.Module, Path]:
    torch.manual_seed(0)
    model = Net().to(DEVICE)
    gravure.export_joint(model, (batch(0),), tmp_path / "pair")
    return model, tmp_path / "pair"


def load(exported: tuple[nn.Module, Path], **options: Any) -> gravure.runtime.Program:
    model, path = exported
    device = "host" if DEVICE == "cpu" else DEVICE
    program = gravure.load(path, device, poison=True, **options)
    named = dict(model.named_parameters())
    for entry in program.entries:
        names = {slot.name for slot in program.inputs(entry) if slot.role == "parameter"}
        program.bind({name: p.detach() for name, p in named.items() if name in names}, entry)
    return program


def forward(program: gravure.runtime.Program, x: Tensor, **which: Any) -> dict[str, Any]:
    results = program.run([x], "forward", **which)
    slots = program.outputs("forward")
    found: dict[str, Any] = {"x": x, "loss": results[0]}
    found["saved"] = {
        slot.name: value for slot, value in zip(slots, results, strict=True) if slot.role == "saved"
    }
    return found


def backward(program: gravure.runtime.Program, call: dict[str, Any], **which: Any) -> list[Any]:
    given = dict(call.pop("saved"))
    bound = {slot.name for slot in program.inputs("backward") if slot.role == "parameter"}
    for slot in program.inputs("backward"):
        if slot.role == "tangent":
            given[slot.name] = torch.ones((), device=DEVICE)
    given = {name: value for name, value in given.items() if name not in bound}
    return [bits(g) for g in program.run(given, "backward", **which)]


def expected(model: nn.Module, x: Tensor) -> tuple[Any, list[Any]]:
    loss = model(x)
    return bits(loss), [bits(g) for g in torch.autograd.grad(loss, list(model.parameters()))]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_three_calls_in_flight_are_replayed(
    exported: tuple[nn.Module, Path], order: tuple[int, ...]
) -> None:
    program = load(exported)
    for step in range(8):
        calls, ran = [], []
        for i in range(3):
            calls.append(forward(program, batch(10 * step + i)))
            ran.append(program.instance)
        assert step == 0 or sorted(ran) == [0, 1, 2]
        for i in order:
            x, loss = calls[i]["x"], bits(calls[i]["loss"])
            gradients = backward(program, calls[i])
            assert step == 0 or program.instance == ran[i]
            assert (loss, sorted(gradients)) == _sorted(expected(exported[0], x))
        if step == 3:
            before = program.stats()["uncaptured_steps"]
    assert program.instances == 3
    assert program.stats()["uncaptured_steps"] == before
    assert program.stats()["steps"] == 8 * 6


def _sorted(both: tuple[Any, list[Any]]) -> tuple[Any, list[Any]]:
    return both[0], sorted(both[1])


def test_the_caller_may_choose(exported: tuple[nn.Module, Path]) -> None:
    program = load(exported)
    for step in range(6):
        calls = [forward(program, batch(10 * step + i), instance=i) for i in range(2)]
        for i in (0, 1):
            x = calls[i]["x"]
            found = backward(program, calls[i], instance=i)
            assert sorted(found) == _sorted(expected(exported[0], x))[1]
    assert program.stats()["uncaptured_steps"] <= 4
    with pytest.raises(IndexError, match="instance 5 of 2"):
        forward(program, batch(0), instance=5)


def test_beyond_the_limit_a_call_runs_uncaptured_and_right(
    exported: tuple[nn.Module, Path],
) -> None:
    program = load(exported, max_in_flight=2)
    for step in range(6):
        calls = [forward(program, batch(10 * step + i)) for i in range(4)]
        for call in calls:
            x = call["x"]
            assert sorted(backward(program, call)) == _sorted(expected(exported[0], x))[1]
    assert program.instances == 2


def test_one_call_at_a_time_has_one_instance(exported: tuple[nn.Module, Path]) -> None:
    program = load(exported)
    for step in range(5):
        call = forward(program, batch(step))
        x = call["x"]
        assert sorted(backward(program, call)) == _sorted(expected(exported[0], x))[1]
    assert program.instances == 1
    assert program.stats()["uncaptured_steps"] == 4


def test_a_backward_behind_shutdown_is_a_clear_error(exported: tuple[nn.Module, Path]) -> None:
    program = load(exported)
    for step in range(4):
        calls = [forward(program, batch(10 * step + i)) for i in range(2)]
        for call in calls:
            backward(program, call)
    call = forward(program, batch(0))
    program.shutdown()
    with pytest.raises(RuntimeError, match="was shut down"):
        backward(program, call)

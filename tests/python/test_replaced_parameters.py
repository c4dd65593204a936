"""A step uses the parameters that there are when it is called, and Python passes none of them."""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from running import bits, need_library
from torch import Tensor
from training import eager_step, state_of

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

POISON = {"poison": True}


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x) + self.shift)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Inner(), Inner()])
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x * self.scale


def _attribute(model: Outer, value: Tensor) -> None:
    model.parts[1].linear.weight = nn.Parameter(value)


def _assigned(model: Outer, value: Tensor) -> None:
    state = {name: value_of.clone() for name, value_of in model.state_dict().items()}
    state["parts.0.linear.weight"] = value.clone()
    model.load_state_dict(state, assign=True)


def _dictionary(model: Outer, value: Tensor) -> None:
    model.parts[0].linear._parameters["weight"] = nn.Parameter(value)


def _data(model: Outer, value: Tensor) -> None:
    model.parts[0].linear.weight.data = value


def _module(model: Outer, value: Tensor) -> None:
    model.parts[1] = Inner()
    with torch.no_grad():
        model.parts[1].linear.weight.copy_(value)
        model.parts[1].linear.bias.zero_()


def _inner_module(model: Outer, value: Tensor) -> None:
    model.parts[0].linear = nn.Linear(4, 4)
    model.parts[0].linear.load_state_dict({"weight": value, "bias": value[0]})


def _buffer(model: Outer, value: Tensor) -> None:
    model.parts[1].shift = value[0].clone()


def _in_place(model: Outer, value: Tensor) -> None:
    with torch.no_grad():
        model.parts[0].linear.weight.copy_(value)


CHANGES = (
    _attribute,
    _assigned,
    _dictionary,
    _data,
    _module,
    _inner_module,
    _buffer,
    _in_place,
)


def same_steps(model: Outer, step: Any, twin: Outer, change: Any, steps: int = 16) -> None:
    """Each step beside eager's, with a change before the fifth, the sixth and the twelfth."""
    for i in range(steps):
        if i in (4, 5, 11):
            value = torch.randn(4, 4)
            for each in (model, twin):
                change(each, value.clone())
        x = torch.randn(3, 4)
        for each in (model, twin):
            each.zero_grad()
        assert bits(step(x)) == bits(eager_step(lambda x: twin(x).square().sum(), x))
        assert state_of(model) == state_of(twin), f"step {i}"


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_replaced_is_used_from_the_next_step_on(change: Any) -> None:
    model = Outer()
    twin = copy.deepcopy(model)
    step = gravure.compile_step(lambda x: model(x).square().sum(), options=POISON)
    same_steps(model, step, twin, change)
    (graph,) = gravure.report().graphs[-1:]
    assert graph.programs[0].stats["replays"] > 0


@pytest.mark.parametrize("change", [_attribute, _module, _dictionary])
def test_a_module_that_is_an_argument(change: Any) -> None:
    models = [Outer(), Outer()]
    twins = copy.deepcopy(models)
    step = gravure.compile_step(lambda m, x: m(x).square().sum(), options=POISON)
    for i in range(14):
        if i in (5, 6, 10):
            value = torch.randn(4, 4)
            for each in (models[i % 2], twins[i % 2]):
                change(each, value.clone())
        x = torch.randn(3, 4)
        model, twin = models[i // 3 % 2], twins[i // 3 % 2]
        for each in (model, twin):
            each.zero_grad()
        assert bits(step(model, x)) == bits(eager_step(lambda x, m=twin: m(x).square().sum(), x))
        assert state_of(model) == state_of(twin)


def test_a_name_that_is_given_another_module() -> None:
    model, other = Outer(), Outer()
    twins = copy.deepcopy((model, other))
    step = gravure.compile_step(lambda x: model(x).square().sum(), options=POISON)
    for i in range(12):
        if i == 5:
            model = other
        x = torch.randn(3, 4)
        twin = twins[i >= 5]
        for each in (model, twin):
            each.zero_grad()
        assert bits(step(x)) == bits(eager_step(lambda x, m=twin: m(x).square().sum(), x))
        assert state_of(model) == state_of(twin)


def test_a_module_with_a_count_that_changes_in_each_step() -> None:
    model = Outer()
    twin = copy.deepcopy(model)
    step = gravure.compile_step(lambda x: model(x).square().sum(), options=POISON)

    def counted(x: Tensor) -> Any:
        model.steps_so_far = getattr(model, "steps_so_far", 0) + 1
        return step(x)

    same_steps(model, counted, twin, _attribute)


def test_a_buffer_that_is_another_tensor_in_each_step() -> None:
    model = Outer()
    twin = copy.deepcopy(model)
    step = gravure.compile_step(lambda x: model(x).square().sum(), options=POISON)
    for _ in range(9):
        x, shift = torch.randn(3, 4), torch.randn(4)
        for each in (model, twin):
            each.zero_grad()
            each.parts[0].shift = shift.clone()
        assert bits(step(x)) == bits(eager_step(lambda x: twin(x).square().sum(), x))
        assert state_of(model) == state_of(twin)


def test_the_function_dies_with_its_step() -> None:
    class Loss:
        def __init__(self) -> None:
            self.model = Outer()

        def __call__(self, x: Tensor) -> Tensor:
            return self.model(x).square().sum()

    loss = Loss()
    step = gravure.compile_step(loss)
    for _ in range(5):
        step(torch.randn(3, 4))
    gone: list[bool] = []
    weakref.finalize(loss, gone.append, True)
    del step, loss
    torch._dynamo.reset()
    gc.collect()
    assert gone == [True]


class Layers(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(count)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def instructions(call: Callable[[], Any]) -> int:
    """Of Python's interpreter, that `call` runs, with each call of a C function."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("with_optimizer", [False, True])
def test_python_runs_no_instruction_more_for_a_parameter_more(with_optimizer: bool) -> None:
    counted = []
    for count in (3, 30):
        model = Layers(count)
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        step = gravure.compile_step(
            lambda x, m=model: m(x).sum(), optimizer=optimizer if with_optimizer else None
        )
        x = torch.randn(2, 2)
        for _ in range(6):
            model.zero_grad()
            step(x)
        for _ in range(2):  # CPython 3.12 tells of no instruction the first time
            model.zero_grad()
            found = instructions(lambda s=step, x=x: s(x))
        counted.append(found)
        assert gravure.report().graphs[-1].programs[0].partitions == {"step": ["captured"]}
    assert counted[0] == counted[1] > 10


def test_an_optimizer_that_does_not_know_the_new_parameter() -> None:
    model = Outer()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = gravure.compile_step(lambda x: model(x).sum(), optimizer=optimizer)
    x = torch.randn(3, 4)
    for _ in range(5):
        step(x)
    _attribute(model, torch.randn(4, 4))
    before = state_of(model)
    for _ in range(3):
        with pytest.raises(RuntimeError, match=r"linear.weight.*was replaced.*give the new one"):
            step(x)
        assert state_of(model) == before


def test_an_optimizer_that_is_given_the_new_parameter() -> None:
    model = Outer()
    twin = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (model, twin)]
    step = gravure.compile_step(lambda x: model(x).sum(), optimizer=optimizers[0], options=POISON)
    for i in range(14):
        if i == 6:
            value = torch.randn(4, 4)
            for each, optimizer in zip((model, twin), optimizers, strict=True):
                old = each.parts[1].linear.weight
                _attribute(each, value.clone())
                held = optimizer.param_groups[0]["params"]
                held[next(k for k, p in enumerate(held) if p is old)] = each.parts[1].linear.weight
        x = torch.randn(3, 4)
        optimizers[1].zero_grad()
        expected = twin(x).sum()
        assert bits(step(x)) == bits(expected)
        expected.backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
        assert state_of(model) == state_of(twin), f"step {i}"


def _converted(model: nn.Module, dtype: torch.dtype) -> None:
    model.to(dtype)


def _given_data(model: nn.Module, dtype: torch.dtype) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
        parameter.grad = None


def _one_alone(model: nn.Module, dtype: torch.dtype) -> None:
    weight = model.parts[0].linear.weight
    weight.data, weight.grad = weight.data.to(dtype), None


class Converts(Outer):
    """It takes weights of any dtype."""

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            weight, bias = part.linear.weight, part.linear.bias
            x = torch.tanh(x.to(weight.dtype) @ weight + bias + part.shift)
        return x * self.scale


@pytest.mark.parametrize("with_optimizer", [False, True])
@pytest.mark.parametrize("convert", [_converted, _given_data, _one_alone])
def test_a_model_that_is_converted_gets_a_program(
    convert: Any, *, with_optimizer: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """One for each dtype: it comes back to those that it had."""
    model = Converts()
    twin = copy.deepcopy(model)
    mine, theirs = (torch.optim.SGD(m.parameters(), 0.01) for m in (model, twin))
    given: dict[str, Any] = {"optimizer": mine} if with_optimizer else {}
    step = gravure.compile_step(lambda x: model(x).square().sum(), options=POISON, **given)
    programs = []
    for i in range(24):
        if i and i % 4 == 0:
            for each in (model, twin):
                convert(each, torch.bfloat16 if i % 8 else torch.float32)
        x = torch.randn(3, 4)
        for each in (model, twin):
            each.zero_grad()
        assert bits(step(x)) == bits(eager_step(lambda x: twin(x).square().sum(), x))
        if not with_optimizer:
            assert state_of(model) == state_of(twin)
            mine.step()
        theirs.step()
        assert [*map(bits, model.parameters())] == [*map(bits, twin.parameters())]
        programs.append(sum(len(graph.programs) for graph in gravure.report().graphs))
    assert programs[-1] == programs[7]
    assert not [r for r in caplog.records if r.name == "gravure" and r.levelname == "WARNING"]


def test_a_conversion_that_the_step_cannot_take_leaves_all_as_it_was() -> None:
    model = Outer()  # its inputs are float32
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    step = gravure.compile_step(lambda x: model(x).square().sum(), optimizer=optimizer)
    x = torch.randn(3, 4)
    for _ in range(5):
        step(x)
    model.double()
    before = [bits(p) for p in model.parameters()]
    with pytest.raises(RuntimeError, match="Double"):
        step(x)
    assert [bits(p) for p in model.parameters()] == before
    model.float()
    step(x)

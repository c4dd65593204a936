"""Hooks, modes, threads, replaced parameters and errors around a graph that is one native node."""

from __future__ import annotations

import copy
import functools
import gc
import logging
import re
import threading
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from native_steps import NODE, Parts, Saves, is_native, parts, warm
from running import bits, need_library
from torch import Tensor
from torch._dynamo import compiled_autograd
from training import Mlp, compiled, replays, rows, same_as_eager, state_of, step_around

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


def test_hooks_run_once_and_in_order() -> None:
    twins = Mlp(), Mlp()
    twins[1].load_state_dict(twins[0].state_dict())
    call = compiled(twins[0])
    for i in range(6):
        events: list[list[str]] = []
        for model, run in ((twins[0], call), (twins[1], twins[1])):
            seen: list[str] = []
            weight = model.first.weight
            handles = [
                weight.register_hook(lambda g, s=seen: (s.append("gradient"), g * 2)[1]),
                weight.register_post_accumulate_grad_hook(lambda _, s=seen: s.append("added")),
            ]
            torch.manual_seed(i)
            x = torch.randn(5, 8, requires_grad=True)
            result = run(x)
            result.register_hook(lambda g, s=seen: (s.append("result"), g + 1)[1])
            result.retain_grad()
            handles.append(result.grad_fn.register_hook(lambda *_, s=seen: s.append("after")))
            result.square().sum().backward()
            for handle in handles:
                handle.remove()
            events.append([e for e in seen if e != "after"])
            assert seen.count("after") == 1
            events.append([bits(result.grad), bits(x.grad), state_of(model)])  # type: ignore[list-item]
        assert events[:2] == events[2:]
        for model in twins:
            model.zero_grad()


def test_a_replaced_parameter_gets_the_gradient() -> None:
    model = Mlp()
    call = warm(model, torch.randn(5, 8))
    old = model.second.weight
    for i in range(4):
        new = nn.Parameter(torch.randn_like(old))
        model.second.weight = new
        twin = copy.deepcopy(model)
        for run in (call, twin):
            torch.manual_seed(i)
            result = run(torch.randn(5, 8))
            result.square().sum().backward()
        assert old.grad is None and new.grad is not None
        assert state_of(model) == state_of(twin)
        model.zero_grad()
        old = new


def test_other_data_and_another_type_for_a_parameter() -> None:
    model = Mlp()
    x = torch.randn(5, 8)
    call = warm(model, x)
    for change in (lambda: model.double(), lambda: model.float(), lambda: model.float()):
        change()
        x = x.to(model.first.weight.dtype)
        twin = copy.deepcopy(model)
        for run in (call, twin):
            for _ in range(3):
                run(x).square().sum().backward()
        assert state_of(model) == state_of(twin)
        direct = torch.autograd.grad(call(x).square().sum(), list(model.parameters()))
        expected = torch.autograd.grad(twin(x).square().sum(), list(twin.parameters()))
        assert list(map(bits, direct)) == list(map(bits, expected))
        model.zero_grad()


def test_a_parameter_that_is_frozen_has_no_gradient() -> None:
    model = Mlp()
    x = torch.randn(5, 8)
    call = warm(model, x)
    model.first.weight.requires_grad_(False)
    for _ in range(3):
        call(x).sum().backward()
    assert model.first.weight.grad is None and model.first.bias.grad is not None
    assert is_native(call(x))


def test_modules_of_one_graph_keep_apart() -> None:
    layers = nn.ModuleList([Saves() for _ in range(3)])
    twins = copy.deepcopy(layers)
    for layer in layers:
        layer.compile(backend="gravure")
    for i in range(6):
        for each in (layers, twins):
            torch.manual_seed(i)
            x = torch.randn(5, 8)
            results = []
            for layer in each:
                x = layer(x).tanh()
                results.append(x)
            x.square().sum().backward()
        assert state_of(layers) == state_of(twins)
        for each in (layers, twins):
            each.zero_grad()
    assert len(gravure.report().graphs[-1].programs) == 2  # the first layer's x needs no gradient


def test_forward_and_backward_in_two_threads() -> None:
    model = Mlp()
    call = warm(model, torch.randn(5, 8))
    twin = copy.deepcopy(model)
    x = torch.randn(5, 8)
    found = []

    def backward(result: Tensor) -> None:
        result.square().sum().backward()
        found.append(True)

    for run in (call, twin):
        result = run(x)
        thread = threading.Thread(target=backward, args=(result,))
        thread.start()
        thread.join()
    assert len(found) == 2 and state_of(model) == state_of(twin)


class Chain(nn.Module):
    """A backward of as many calls on the host as it is long."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.length = length

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale
        for _ in range(self.length):
            x = x.tanh()
        return x.sum()


@pytest.mark.parametrize(
    ("length", "elsewhere", "said"),
    [(40, True, True), (40, False, False), (20, True, False)],
    ids=["many calls", "one thread", "few calls"],
)
def test_many_host_calls_on_another_thread_are_said(
    length: int, elsewhere: bool, said: bool
) -> None:
    model, x = Chain(length), torch.randn(4, 8)
    call = torch.compile(model, backend="gravure", options={"host": ["aten::tanh_backward"]})
    for _ in range(4):
        loss = call(x)
        if elsewhere:
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()
        else:
            loss.backward()
    (program,) = gravure.report().graphs[-1].programs
    found = [remark for remark in program.remarks if remark.startswith("threads-differ")]
    assert len(found) == said
    for remark in found:
        assert re.search(r"'backward' makes 4\d calls on the host in each step", remark)
        assert "torch.autograd.set_multithreading_enabled(False)" in remark


class Root(Saves):
    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale.abs()).sqrt()


@pytest.mark.filterwarnings("ignore")
def test_anomaly_mode_finds_the_node() -> None:
    model, x = Root(), torch.rand(5, 8)
    call = warm(model, x)
    with torch.autograd.set_detect_anomaly(True):
        call(x).sum().backward()
        with pytest.raises(RuntimeError, match=f"'{NODE}' returned nan values"):
            call(x * 0).sum().backward()


class Cast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        with torch.autocast("cpu", enabled=False):
            return self.second(y.float()).exp()


_cast_anew = functools.partial(torch.autocast, "cpu", torch.bfloat16, cache_enabled=False)
_in_autocast = functools.partial(step_around, _cast_anew)


@pytest.mark.parametrize("inside", [False, True])
def test_a_backward_runs_as_it_is_called_behind_autocast_or_inside(
    inside: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "gravure"):
        report = same_as_eager(Cast(), rows, functools.partial(_in_autocast, inside=inside))
        assert replays(report) and not caplog.text


@pytest.mark.parametrize("inside", [False, True])
def test_a_backward_that_is_called_otherwise_warns(
    inside: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = Cast()
    call, optimizer = compiled(model), torch.optim.SGD(model.parameters(), 0.05)
    for i in range(6):
        _in_autocast(call, optimizer, rows(i), inside=inside)
    with caplog.at_level(logging.WARNING, "gravure"):
        for i in range(2):
            _in_autocast(call, optimizer, rows(i), inside=not inside)
    assert caplog.text.count("behind the `with`") == 1


def test_modes_of_the_backward_are_refused_as_ever() -> None:
    model, x = Saves(), torch.randn(5, 8)
    call = warm(model, x)
    result = call(x)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="use_deterministic_algorithms"):
            result.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(("model", "batch"), [(Mlp(), rows), (Parts(), parts)])
def test_compiled_autograd_runs_the_node(model: nn.Module, batch: Any) -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        runs_in_compiled_autograd(model, batch)


def runs_in_compiled_autograd(model: nn.Module, batch: Any) -> None:
    twin = copy.deepcopy(model)
    call = compiled(model)
    for i in range(5):
        for each, run in ((model, call), (twin, twin)):
            each.zero_grad()
            torch.manual_seed(i)
            loss = run(*batch(i)).square().mean()
            if run is twin:
                loss.backward()
                continue
            with compiled_autograd._enable(torch.compile(backend="eager")):
                loss.backward()
        assert state_of(model) == state_of(twin), i
    assert is_native(call(*batch(0)))


@pytest.mark.parametrize("codegen", ["aten", "inductor"])
def test_a_graph_of_autograds_outlives_what_was_compiled(codegen: str) -> None:
    model, x = Mlp(), torch.randn(5, 8, requires_grad=True)
    found = []
    for outlives in (False, True):
        call = warm(model, x, options={"codegen": codegen})
        model.zero_grad()
        result = call(x)
        if outlives:
            del call
            torch._dynamo.reset()
            gc.collect()
        result.square().sum().backward()
        found.append(state_of(model))
    assert found[0] == found[1]


class Failing(nn.Module):
    fails = False

    def forward(self, x: Tensor) -> Tensor:
        return failing(x * 2) * 3


@torch.library.custom_op("gravure_native::failing", mutates_args=())
def failing(x: Tensor) -> Tensor:
    return x.clone()


@torch.library.custom_op("gravure_native::failing_backward", mutates_args=())
def failing_backward(x: Tensor) -> Tensor:
    if Failing.fails:
        raise ValueError("it fails on purpose")
    return x.clone()


for _op in (failing, failing_backward):
    _op.register_fake(torch.empty_like)

failing.register_autograd(lambda _, gradient: failing_backward(gradient))


@pytest.mark.parametrize("steps", [1, 5])
def test_an_error_in_a_backward_is_the_callers(steps: int) -> None:
    x = torch.randn(5, 8, requires_grad=True)
    call = warm(Failing(), x, steps)
    for _ in range(2):
        Failing.fails = True
        try:
            with pytest.raises(Exception, match="it fails on purpose"):
                call(x).sum().backward()
        finally:
            Failing.fails = False
        assert x.grad is None
        call(x).sum().backward()
        assert bits(x.grad) == bits(torch.full((5, 8), 6.0))
        x.grad = None

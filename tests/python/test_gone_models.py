"""Programs go with the model that they were captured for, and when they are asked to."""

from __future__ import annotations

import copy
import gc
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from running import DEVICES, bits, need_library
from torch import Tensor
from training import Mlp, Net, state_of

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

POISON = {"poison": True}


@pytest.fixture(params=DEVICES)
def device(request: Any) -> str:
    return request.param


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.WARNING, "gravure")
    yield


def compiled(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend="gravure", options=POISON | options)


def train(call: Any, device: str, steps: int = 5) -> None:
    for _ in range(steps):
        call(torch.randn(5, 8, device=device)).square().sum().backward()


def step_of(call: Any, x: Tensor) -> list[Any]:
    y = call(x)
    y.square().sum().backward()
    return [bits(y)]


def same(ours: Any, call: Any, twin: nn.Module, device: str, seed: int = 0) -> None:
    """One step of both: results, gradients and buffers."""
    torch.manual_seed(seed)
    x = torch.randn(5, 8, device=device)
    found = []
    for model, run in ((ours, call), (twin, twin)):
        model.zero_grad()
        torch.manual_seed(seed)
        found.append([step_of(run, x), state_of(model)])
    assert found[0] == found[1]


def programs(older: Any = ()) -> list[Any]:
    return [p for g in gravure.report().graphs if g.number not in older for p in g.programs]


def numbers() -> list[int]:
    return [graph.number for graph in gravure.report().graphs]


def memory(device: str) -> int:
    """Bytes in use on a GPU; without arenas, whose pages PyTorch does not count."""
    gc.collect()
    return torch.cuda.memory_allocated() if device == "cuda" else 0


# ---- a model that is dropped


@pytest.mark.parametrize("grad", [True, False])
def test_models_that_are_gone_are_not_kept(device: str, grad: bool) -> None:
    older = numbers()
    watches: list[weakref.ref[Any]] = []
    before = memory(device)
    for _ in range(5):
        model = Net().to(device)
        call = compiled(model)
        with torch.set_grad_enabled(grad):
            for _ in range(5):
                y = call(torch.randn(5, 8, device=device)).square().sum()
                if grad:
                    y.backward()
        watches += map(weakref.ref, [model, *model.parameters(), *model.buffers()])
        assert len(programs(older)) == 1 and programs(older)[0].stats["replays"] > 0
        del model, call, y
        gc.collect()
        assert not any(watch() for watch in watches)
    assert programs(older) == [] and memory(device) == before


def test_the_limit_counts_living_modules_alone(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(6):
        older = numbers()
        model = Mlp()
        train(compiled(model, max_modules=1), "cpu")
        assert max(p.stats["replays"] for p in programs()) > 0, older
        del model
        gc.collect()
    assert not caplog.text


def test_a_replaced_parameter_goes_with_its_program(device: str) -> None:
    model = Mlp().to(device)
    call, older = compiled(model), numbers()
    train(call, device)
    former = weakref.ref(model.second.weight)
    model.second.weight = nn.Parameter(torch.randn(4, 16, device=device))
    gc.collect()
    assert former() is None and programs(older) == []
    twin = copy.deepcopy(model)
    for i in range(6):
        same(model, call, twin, device, i)
    assert programs(older)[0].stats["replays"] > 0


def test_a_model_that_is_loaded_by_assignment(device: str) -> None:
    model = Net().to(device)
    call, older = compiled(model), numbers()
    train(call, device)
    watches = [weakref.ref(p) for p in model.parameters()]
    model.load_state_dict(Net().to(device).state_dict(), assign=True)
    gc.collect()
    assert not any(watch() for watch in watches)
    twin = copy.deepcopy(model)
    for i in range(6):
        same(model, call, twin, device, i)
    assert len(programs(older)) == 1 and programs(older)[0].stats["replays"] > 0


@pytest.mark.parametrize("native", [True, False])
def test_a_backward_runs_after_a_frozen_parameter_is_gone(native: bool) -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.randn(8))
            self.shift = nn.Parameter(torch.randn(8), requires_grad=False)

        def forward(self, x: Tensor) -> Any:
            y = torch.sin(x * self.scale) + self.shift
            # A view of an argument is AOTAutograd's wrapper's.
            return (y,) if native else (y, x.view(-1))

    model = Shifted()
    call = compiled(model)
    for _ in range(5):
        call(torch.randn(5, 8))[0].square().sum().backward()
    x = torch.randn(5, 8)
    twin = copy.deepcopy(model)
    scale, shift = model.scale, weakref.ref(model.shift)
    scale.grad = twin.scale.grad = None
    y = call(x)[0]
    del model
    call = None
    gc.collect()
    assert shift() is None and programs() == []
    y.square().sum().backward()
    twin(x)[0].square().sum().backward()
    assert bits(scale.grad) == bits(twin.scale.grad)


def test_a_result_outlives_the_model() -> None:
    model = Mlp()
    twin = copy.deepcopy(model)
    call = compiled(model)
    train(call, "cpu")
    x = torch.randn(5, 8)
    y = call(x)
    gradients = torch.autograd.grad(y.sum(), list(model.parameters()))
    del model, call
    gc.collect()
    expected = twin(x)
    assert bits(y) == bits(expected)
    eager = torch.autograd.grad(expected.sum(), list(twin.parameters()))
    assert [*map(bits, gradients)] == [*map(bits, eager)]


def test_a_graph_of_autograds_outlives_the_model() -> None:
    model = Mlp()
    twin = copy.deepcopy(model)
    call = compiled(model)
    train(call, "cpu")
    x = torch.randn(5, 8, requires_grad=True)
    y = call(x)
    del model, call
    gc.collect()
    (found,) = torch.autograd.grad(y.square().sum(), [x])
    (expected,) = torch.autograd.grad(twin(x).square().sum(), [x])
    assert bits(found) == bits(expected)
    del y
    gc.collect()
    assert programs() == []


def test_models_are_dropped_on_another_thread_while_one_trains() -> None:
    model = Mlp()  # without draws, of which threads would take each other's
    twin = copy.deepcopy(model)
    call = compiled(model)
    # Dynamo cannot compile beside calls. Each is a cycle, which the garbage collector finds.
    gone = [Mlp() for _ in range(6)]
    for each in gone:
        each.itself = [each]
        train(compiled(each), "cpu", 4)
    each = None
    older = len(programs())

    def drops() -> None:
        while gone:
            gone.pop()
            gc.collect()

    thread = threading.Thread(target=drops)
    for i in range(40):
        if i == 10:
            thread.start()
        same(model, call, twin, "cpu", i)
    thread.join()
    assert len(programs()) == 1 < older


# ---- modules that share some of what they hold


class Adapter(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.down = base, nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.down(x)


def train_in_turns(models: Any, device: str, rounds: int = 12) -> None:
    """Each is served by a program of its own, and what it computes is eager's."""
    twins, older = copy.deepcopy(models), numbers()
    calls = [compiled(model) for model in models]
    for i in range(rounds):
        if i == 6:
            warm = [program.stats["uncaptured_steps"] for program in programs(older)]
        for model, call, twin in zip(models, calls, twins, strict=True):
            same(model, call, twin, device, i)
    found = programs(older)
    assert len(found) == len(models) and all(p.stats["replays"] >= 2 * (rounds - 6) for p in found)
    assert [program.stats["uncaptured_steps"] for program in found] == warm


@pytest.mark.parametrize("frozen", [True, False])
def test_adapters_on_one_base_are_told_apart(frozen: bool, device: str) -> None:
    base = nn.Linear(8, 8).requires_grad_(not frozen)
    adapters = nn.ModuleList([Adapter(base) for _ in range(3)]).to(device)
    older = numbers()
    train_in_turns(adapters, device)
    del adapters
    gc.collect()
    assert programs(older) == []  # though the base lives


def test_a_head_that_several_frozen_bases_share(device: str) -> None:
    class Headed(nn.Module):
        def __init__(self, head: nn.Module) -> None:
            super().__init__()
            self.head, self.base = head, nn.Linear(8, 8).requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(self.base(x)))

    head = nn.Linear(8, 4)
    models = nn.ModuleList([Headed(head) for _ in range(2)]).to(device)
    train_in_turns(models, device)


def test_statistics_of_several_domains_beside_shared_weights(device: str) -> None:
    class Domain(nn.Module):
        def __init__(self, linear: nn.Module) -> None:
            super().__init__()
            self.linear, self.norm = linear, nn.BatchNorm1d(8, affine=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.linear(x))

    linear = nn.Linear(8, 8)
    models = nn.ModuleList([Domain(linear) for _ in range(3)]).to(device)
    train_in_turns(models, device)


def test_a_buffer_that_is_another_one_in_each_step_is_the_same_modules() -> None:
    class Averaged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.register_buffer("ema", torch.zeros(8))

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x) + self.ema
            self.ema = 0.9 * self.ema + y.detach().mean(0)
            return y

    model = Averaged()
    twin, older = copy.deepcopy(model), numbers()
    call = compiled(model)
    for i in range(12):
        same(model, call, twin, "cpu", i)
    assert len(programs(older)) == 1
    held = []
    for i in range(12):  # and where the former ones are held, for a chart
        held.append(model.ema)
        same(model, call, twin, "cpu", i)
    assert len(programs(older)) <= 5


def test_two_sets_of_weights_in_turn_are_two_programs(device: str) -> None:
    """As a loop evaluates an average of the weights, and goes on with the weights themselves."""
    model = Mlp().to(device)
    twin, older = copy.deepcopy(model), numbers()
    call = compiled(model)
    sets = []
    for each in (model, twin):
        own = {n: p for n, p in each.named_parameters()}
        sets.append([own, {n: nn.Parameter(p.detach() * 0.5) for n, p in own.items()}])
    for i in range(20):
        if i == 12:
            warm = [program.stats["uncaptured_steps"] for program in programs(older)]
        for each, two in zip((model, twin), sets, strict=True):
            for name, parameter in two[i % 2].items():
                layer, _, own = name.rpartition(".")
                setattr(each.get_submodule(layer), own, parameter)
        same(model, call, twin, device, i)
    assert [program.stats["uncaptured_steps"] for program in programs(older)] == warm
    assert len(warm) == 2


# ---- what is asked for


def test_captures_of_one_model_are_dropped(device: str) -> None:
    older = numbers()
    models = [Net().to(device), Net().to(device)]
    twins = copy.deepcopy(models)
    calls = [compiled(model) for model in models]
    for i in range(5):
        for model, call, twin in zip(models, calls, twins, strict=True):
            same(model, call, twin, device, i)
    assert len(programs(older)) == 2
    assert gravure.drop_captures(calls[0]) == 1 and len(programs(older)) == 1
    assert gravure.drop_captures(models[1]) == 1 and programs(older) == []
    assert gravure.drop_captures(models[1]) == 0
    for i in range(5):
        for model, call, twin in zip(models, calls, twins, strict=True):
            same(model, call, twin, device, i)
    assert all(p.stats["replays"] > 0 for p in programs(older)) and len(programs(older)) == 2


def test_captures_of_all_are_dropped(device: str) -> None:
    older = numbers()
    model, weight = Net().to(device), nn.Parameter(torch.randn(8, device=device))
    twin, x = copy.deepcopy(model), torch.randn(5, 8, device=device)
    call, function = compiled(model), compiled(lambda x: (x * weight).sum())
    train(call, device)
    train(function, device)
    twin.load_state_dict(model.state_dict())
    held = function(x)
    expected = bits(held)
    assert gravure.drop_captures() == 2 and programs(older) == []
    assert bits(held) == expected
    for i in range(5):
        same(model, call, twin, device, i)
        assert bits(function(x)) == expected
    assert programs(older)[0].stats["replays"] > 0


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_backward_runs_after_its_captures_were_dropped(dynamic: bool) -> None:
    model = Mlp()
    twin = copy.deepcopy(model)
    call = torch.compile(model, backend="gravure", dynamic=dynamic)
    for rows in (5, 3, 5, 3, 5, 3, 5, 3, 5, 3):
        call(torch.randn(rows, 8)).square().sum().backward()
    model.zero_grad()
    x, z = torch.randn(5, 8), torch.randn(3, 8)
    y, w = call(x), call(z)
    gravure.drop_captures()
    (y.square().sum() + w.square().sum()).backward()
    (twin(x).square().sum() + twin(z).square().sum()).backward()
    assert state_of(model) == state_of(twin)


@pytest.mark.parametrize("updated", [False, True])
def test_captures_of_a_step_are_dropped(device: str, updated: bool) -> None:
    models = [Mlp().to(device)]
    models.append(copy.deepcopy(models[0]))
    optimizers = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in models]
    step = gravure.compile_step(
        lambda x: models[0](x).square().mean(),
        optimizer=optimizers[0] if updated else None,
        options=POISON,
    )
    older = numbers()
    for i in range(14):
        x = torch.randn(5, 8, device=device)
        loss = step(x)
        expected = models[1](x).square().mean()
        expected.backward()
        for optimizer in optimizers[int(updated) :]:
            optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()
        assert bits(loss) == bits(expected) and state_of(models[0]) == state_of(models[1])
        if i == 6:
            assert gravure.drop_captures(step) >= 1 and gravure.drop_captures(step) == 0
            assert [p for p in programs(older) if p.stats["replays"]] == []
    assert programs(older)[-1].stats["replays"] > 0


@pytest.mark.parametrize("updated", [False, True])
@pytest.mark.parametrize("kind", ["function", "module"])
def test_a_step_that_is_gone_lets_go_of_its_model(device: str, kind: str, updated: bool) -> None:
    older, held = numbers(), []
    for _ in range(3):
        model = Mlp().to(device)

        class Loss(nn.Module):
            def __init__(self, model: nn.Module) -> None:
                super().__init__()
                self.model = model

            def forward(self, x: Tensor) -> Tensor:
                return self.model(x).square().mean()

        whole = Loss(model)
        fn = whole if kind == "module" else lambda x, model=model: model(x).square().mean()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9) if updated else None
        step = gravure.compile_step(fn, optimizer=optimizer, options=POISON)
        for _ in range(6):
            step(torch.randn(5, 8, device=device))
        assert programs(older)[-1].stats["replays"] > 0
        held += [weakref.ref(value) for value in (model, *model.parameters())]
    del model, whole, fn, optimizer, step
    gc.collect()
    assert [ref for ref in held if ref() is not None] == [] and programs(older) == []


def test_what_captures_may_be_dropped_of() -> None:
    with pytest.raises(TypeError, match=r"a module or a compiled step.*drop_captures\(\)"):
        gravure.drop_captures(compiled(lambda x: x + 1))


@pytest.mark.parametrize("reset", [torch._dynamo.reset, torch.compiler.reset])
def test_a_reset_of_pytorchs_drops_captures(reset: Callable[[], None]) -> None:
    model = Mlp()
    call = compiled(model)
    train(call, "cpu")
    step = gravure.compile_step(lambda x: model(x).sum())
    for _ in range(4):
        step(torch.randn(5, 8))
    gc.disable()  # nothing waits for it
    try:
        reset()
        assert programs() == []
    finally:
        gc.enable()
    train(call, "cpu")
    step(torch.randn(5, 8))
    assert max(p.stats["replays"] for p in programs()) > 0


def test_a_converted_model_leaves_nothing_behind() -> None:
    model = Mlp()
    call, older = compiled(model), numbers()
    train(call, "cpu")
    assert len(programs(older)) == 1
    model.double()
    compiled(lambda x: x * 2)(torch.randn(3))  # any graph that is compiled
    assert [p for p in programs(older) if p.stats["replays"]] == []


# ---- what changes in each call


def test_parameters_that_are_others_in_each_call(caplog: pytest.LogCaptureFixture) -> None:
    model = Mlp()
    twin, older = copy.deepcopy(model), numbers()
    call = compiled(model)
    for i in range(14):
        for each in (model, twin):
            each.first.weight = nn.Parameter(each.first.weight.detach() * 0.9)
        same(model, call, twin, "cpu", i)
    assert caplog.text.count("copy_") == 1
    assert len(programs(older)) == 1
    for i in range(14):
        same(model, call, twin, "cpu", i)
    assert max(p.stats["replays"] for p in programs(older)) > 0  # it stays now


def test_a_call_with_other_parameters_by_functional_call() -> None:
    model = Mlp()
    twin = copy.deepcopy(model)
    call = compiled(model)
    train(call, "cpu")
    fast = {n: (p.detach() * 0.5).requires_grad_() for n, p in model.named_parameters()}
    x = torch.randn(5, 8)
    for _ in range(3):
        for names, run in ((fast, call), (fast, twin)):
            prefix = "_orig_mod." if run is call else ""
            given = {prefix + name: value for name, value in names.items()}
            y = torch.func.functional_call(run, given, (x,))
            if run is call:
                found = [bits(y), *map(bits, torch.autograd.grad(y.sum(), list(fast.values())))]
            else:
                eager = [bits(y), *map(bits, torch.autograd.grad(y.sum(), list(fast.values())))]
        assert found == eager


# ---- neighbours


def test_a_compiled_model_is_copied_saved_and_shared(tmp_path: Any, device: str) -> None:
    model = Net().to(device)
    call = compiled(model)
    train(call, device)
    copied = copy.deepcopy(call)
    twin = copy.deepcopy(model)
    for i in range(6):
        same(copied._orig_mod, copied, twin, device, i)
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    torch.save(call.state_dict(), tmp_path / "state.pt")
    assert state_of(loaded).keys() == state_of(model).keys()
    model.share_memory() if device == "cpu" else None
    twin = copy.deepcopy(model)
    for i in range(6):
        same(model, call, twin, device, i)


def test_parametrized_weights() -> None:
    model, twin = Mlp(), Mlp()  # a copy would share the class that is changed here
    for each in (model, twin):
        torch.nn.utils.parametrizations.weight_norm(each.first)
    twin.load_state_dict(model.state_dict())
    call, older = compiled(model), numbers()
    for i in range(6):
        same(model, call, twin, "cpu", i)
    assert programs(older)[-1].stats["replays"] > 0
    for each in (model, twin):
        torch.nn.utils.parametrize.remove_parametrizations(each.first, "weight")
    for i in range(6):
        same(model, call, twin, "cpu", i)


def test_parameters_are_swapped_once_captures_are_dropped() -> None:
    model = Mlp()
    call = compiled(model)
    train(call, "cpu")
    model.zero_grad()
    gravure.drop_captures(model)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert model.first.weight.dtype is torch.float64

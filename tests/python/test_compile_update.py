"""gravure.compile_update and the clips: changes in place, in eager's bits."""

from __future__ import annotations

import copy
import gc
import logging
import types
import warnings
from functools import partial
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from gravure import clip_gradients
from gravure.steps import clip_programs
from running import DEVICES, bits, need_library
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 2))


def average(averages: list[Tensor], values: list[Tensor], decay: float) -> None:
    torch._foreach_lerp_(averages, values, 1 - decay)


# ---- averages


@pytest.mark.parametrize("device", DEVICES)
def test_an_average_whose_decay_grows(device: str) -> None:
    update = gravure.compile_update(average)
    values = [torch.randn(5, 3, device=device), torch.randn(100_000, device=device)]
    ours = [torch.zeros_like(v) for v in values]
    eager = [torch.zeros_like(v) for v in values]
    for i in range(10):
        decay = min(0.99, (1 + i) / (10 + i))
        for v in values:
            v.add_(1)
        assert update(ours, values, decay) is None
        average(eager, values, decay)
        assert list(map(bits, ours)) == list(map(bits, eager))
    assert update.gravure_update.programs == 1  # type: ignore[attr-defined]
    assert update.gravure_update.own_calls == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "use_buffers"),  # torch's own average of buffers that are ints fails
    [
        (lambda: get_ema_multi_avg_fn(0.9), False),
        (lambda: get_ema_multi_avg_fn(0.9), True),
        (get_swa_multi_avg_fn, False),
    ],
)
def test_averaged_models(make: Any, use_buffers: bool) -> None:
    trained = model()
    update = gravure.compile_update(make())
    pair = [
        AveragedModel(copy.deepcopy(trained), multi_avg_fn=fn, use_buffers=use_buffers)
        for fn in (make(), update)
    ]
    for _ in range(8):
        with torch.no_grad():
            for p in trained.parameters():
                p.add_(torch.randn_like(p))
        trained(torch.randn(4, 8))
        for averaged in pair:
            averaged.update_parameters(trained)
        one, other = ({k: bits(v) for k, v in a.state_dict().items()} for a in pair)
        assert one == other
    assert update.gravure_update.programs >= 1
    assert update.gravure_update.own_calls <= (7 if use_buffers else 0)  # counts of a buffer


def test_dictionaries_branches_and_kinds() -> None:
    @gravure.compile_update
    def change(state: dict[str, Tensor], *, by: float, twice: bool = False) -> None:
        if by > 1:
            state["x"].mul_(by)
        state["y"].add_(state["x"], alpha=2 if twice else by)

    x, y = torch.ones(3), torch.zeros(3)
    change({"x": x, "y": y}, by=2.0)
    assert (x.tolist(), y.tolist()) == ([2.0] * 3, [4.0] * 3)
    change({"x": x, "y": y}, by=3.0)
    change({"x": x, "y": y}, by=0.5)
    change({"x": x, "y": y}, by=0.5, twice=True)
    assert (x.tolist(), y.tolist()) == ([6.0] * 3, [37.0] * 3)
    assert change.gravure_update.programs == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda x: x.add_(torch.rand(3)), "random numbers"),
        (lambda x: (x.add_(OUTSIDE), None)[1], "neither an argument nor made"),
        (lambda x: x.mul_(2) if x.sum() > 0 else None, "reads a tensor"),
        (lambda x: x.mul_(2), "returns a"),
        (lambda x: (x.add_(int(x[0])), None)[1], "reads a tensor"),
    ],
)
def test_what_is_no_program_runs_as_it_is(
    change: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    update = gravure.compile_update(change)
    ours, eager = torch.ones(3), torch.ones(3)
    with caplog.at_level(logging.WARNING, "gravure"):
        for i in range(3):
            torch.manual_seed(i)
            update(ours)
            torch.manual_seed(i)
            change(eager)
            assert bits(ours) == bits(eager)
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 1 and reason in said[0]


def test_a_count_that_is_another_tensor_is_the_one_that_decides() -> None:
    def change(x: Tensor, count: Tensor) -> None:
        count.add_(1)
        if count.item() > 5:
            x.mul_(2)
        else:
            x.add_(1)

    update = gravure.compile_update(change)
    for start in (0.0, 10.0, 3.0):
        ours, eager = torch.full((3,), 3.0), torch.full((3,), 3.0)
        counts = torch.tensor(start), torch.tensor(start)
        for _ in range(4):
            update(ours, counts[0])
            change(eager, counts[1])
            assert bits(ours) == bits(eager), start
    assert update.gravure_update.programs == 2  # type: ignore[attr-defined]


OUTSIDE = torch.ones(3)


def test_a_tensor_that_comes_twice_and_a_sparse_one() -> None:
    update = gravure.compile_update(lambda xs, by: [x.mul_(by) for x in xs] and None)
    x, sparse = torch.ones(3), torch.eye(3).to_sparse()
    update([x, x], 2.0)
    assert x.tolist() == [4.0] * 3
    update([sparse], 2.0)
    assert sparse.to_dense().tolist() == (torch.eye(3) * 2).tolist()


FACTOR = 0.5
SETTINGS = {"decay": [0.5]}


class Average:
    """Numbers that are no arguments: of itself, its class, another object, a closure, a global."""

    power = 1.0

    def __init__(self) -> None:
        self.decay = 0.5
        self.inner = types.SimpleNamespace(weight=0.5)
        closed = 1.0

        def factor() -> float:
            return closed * FACTOR * SETTINGS["decay"][0]

        def close(value: float) -> None:
            nonlocal closed
            closed = value

        self.factor, self.close = factor, close

    def update(self, averages: list[Tensor], values: list[Tensor]) -> None:
        weight = self.decay * self.inner.weight * self.power * self.factor()
        torch._foreach_lerp_(averages, values, weight)

    def __call__(self, averages: list[Tensor], values: list[Tensor]) -> None:
        self.update(averages, values)

    @property
    def computed(self) -> float:
        return self.decay

    def by_property(self, averages: list[Tensor], values: list[Tensor]) -> None:
        torch._foreach_lerp_(averages, values, self.computed)


CHANGES: list[Any] = [
    lambda a, patch, v: setattr(a, "decay", v),
    lambda a, patch, v: setattr(a.inner, "weight", v),
    lambda a, patch, v: setattr(a, "inner", types.SimpleNamespace(weight=v)),
    lambda a, patch, v: patch.setattr(Average, "power", v),
    lambda a, patch, v: a.close(v),
    lambda a, patch, v: patch.setattr("test_compile_update.FACTOR", v),
    lambda a, patch, v: SETTINGS["decay"].__setitem__(0, v),
]


@pytest.mark.parametrize("call", ["update", "__call__", "object", "partial"])
@pytest.mark.parametrize("change", range(len(CHANGES)))
def test_numbers_that_are_no_arguments(
    change: int, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SETTINGS, "decay", [0.5])
    a = Average()
    fn = {"object": a, "partial": partial(a.update)}.get(call) or getattr(a, call)
    update = gravure.compile_update(fn)
    values = [torch.randn(5, 3), torch.randn(7)]
    ours, eager = ([torch.zeros_like(v) for v in values] for _ in range(2))
    for value in (0.5, 0.5, 0.25, 0.75, 0.5, 0.25):
        CHANGES[change](a, monkeypatch, value)
        for _ in range(2):
            update(ours, values)
            a.update(eager, values)
            assert list(map(bits, ours)) == list(map(bits, eager))
    assert update.gravure_update.programs == 3  # type: ignore[attr-defined]
    assert update.gravure_update.own_calls == 0  # type: ignore[attr-defined]


class Rate:
    value = 2.0


def double(x: Tensor) -> None:
    x.mul_(2)


def triple(x: Tensor) -> None:
    x.mul_(3)


RATES = types.ModuleType("rates")
RATES.double = double  # type: ignore[attr-defined]
CALLED = {"by": double}


class Answers:
    def __getattr__(self, name: str) -> float:
        return Rate.value


ANSWERS = Answers()


class Twice:
    def __init__(self) -> None:
        self.first = self.second = types.SimpleNamespace(by=2.0)

    def __call__(self, x: Tensor) -> None:
        x.mul_(self.first.by + self.second.by)


def defaulted(x: Tensor, by: float = 2.0) -> None:
    x.mul_(by)


@pytest.mark.parametrize(
    ("fn", "change"),
    [
        (lambda x: double(x), lambda p: p.setattr("test_compile_update.double", triple)),
        (lambda x: RATES.double(x), lambda p: p.setattr(RATES, "double", triple)),
        (lambda x: CALLED["by"](x), lambda p: p.setitem(CALLED, "by", triple)),
        (lambda x: double(x), lambda p: p.setattr(double, "__code__", triple.__code__)),
        (defaulted, lambda p: p.setattr(defaulted, "__defaults__", (3.0,))),
        (lambda x: (x.mul_(Rate.value), None)[1], lambda p: p.setattr(Rate, "value", 3.0)),
        (lambda x: (x.mul_(ANSWERS.rate), None)[1], lambda p: p.setattr(Rate, "value", 3.0)),
    ],
    ids=["global", "module", "member", "code", "defaults", "class", "getattr"],
)
def test_functions_and_names_that_stand_for_others(
    fn: Any, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = gravure.compile_update(fn)
    with monkeypatch.context() as patch:
        for factor in (2.0, 3.0):
            for _ in range(3):
                x = torch.ones(3)
                update(x)
                assert x.tolist() == [factor] * 3
            change(patch)
    x = torch.ones(3)
    update(x)
    assert x.tolist() == [2.0] * 3
    assert update.gravure_update.programs == 2  # type: ignore[attr-defined]
    assert update.gravure_update.own_calls == 0  # type: ignore[attr-defined]


def test_an_object_that_two_names_stand_for() -> None:
    twice = Twice()
    update = gravure.compile_update(twice)
    for second in (twice.second, types.SimpleNamespace(by=5.0)):
        twice.second = second
        for _ in range(2):
            x = torch.ones(3)
            update(x)
            assert x.tolist() == [2.0 + second.by] * 3


def test_numbers_that_are_computed_or_of_an_object(caplog: pytest.LogCaptureFixture) -> None:
    a = Average()
    values, averages = [torch.randn(7)], [torch.zeros(7)]
    with caplog.at_level(logging.WARNING, "gravure"):
        update = gravure.compile_update(a.by_property)
        of_object = gravure.compile_update(
            lambda averages, values, a: torch._foreach_lerp_(averages, values, a.decay)
        )
        for _ in range(3):
            update(averages, values)
            of_object(averages, values, a)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "reads Average.computed, which is computed" in said[0] and "a Average" in said[1]
    assert update.gravure_update.own_calls == 3  # type: ignore[attr-defined]


def test_no_function_and_no_option() -> None:
    with pytest.raises(TypeError, match="takes a function, not a int"):
        gravure.compile_update(3)  # type: ignore[type-var]
    with pytest.raises(ValueError, match="codegen"):
        gravure.compile_update(average, options={"codegen": "aten"})


# ---- clips


class Clipped:
    """Equal models, whose gradients are clipped by torch and by Gravure."""

    def __init__(self, dtype: torch.dtype = torch.float32, device: str = "cpu") -> None:
        self.models = [model().to(device, dtype)]
        self.models.append(copy.deepcopy(self.models[0]))
        self.device, self.dtype = device, dtype

    def run(self, name: str, *args: Any, scale: float = 1.0, **how: Any) -> None:
        x = torch.randn(5, 8, device=self.device, dtype=self.dtype) * scale
        results = []
        for module, owner in zip(self.models, (nn.utils, gravure), strict=True):
            module.zero_grad()
            (module(x).square().sum() * scale).backward()
            try:
                result = getattr(owner, name)(module.parameters(), *args, **how)
            except RuntimeError as error:
                result = str(error)
            grads = [bits(p.grad) for p in module.parameters()]
            results.append((bits(result), grads))
        assert results[0] == results[1]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("foreach", [None, True, False])
@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf"), "inf", 3, 0.5])
def test_clip_grad_norm(norm_type: Any, foreach: bool | None, device: str) -> None:
    clipped = Clipped(device=device)
    for i in range(5):
        clipped.run("clip_grad_norm_", 0.1 * (1 + i), norm_type, foreach=foreach)
    clipped.run("clip_grad_norm_", 1e9, norm_type, foreach=foreach)
    (programs,) = (p.programs for p in clip_gradients._PROGRAMS.values())
    assert programs == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    clipped = Clipped(dtype)
    for _ in range(4):
        clipped.run("clip_grad_norm_", 0.3)
        clipped.run("clip_grad_value_", 0.3)


@pytest.mark.parametrize("foreach", [None, True, False])
def test_clip_grad_value(foreach: bool | None) -> None:
    clipped = Clipped()
    for i in range(5):
        clipped.run("clip_grad_value_", 0.01 * (1 + i), foreach=foreach)


def test_norms_that_are_not_finite() -> None:
    clipped = Clipped()
    for scale in (1.0, 1e30, 1.0, 1e30):
        clipped.run("clip_grad_norm_", 1.0, scale=scale)
        clipped.run("clip_grad_norm_", 1.0, scale=scale, error_if_nonfinite=True)


@pytest.mark.parametrize("results", ["static", "accumulate"])
def test_norms_are_the_callers_whatever_results_of_steps_are(
    results: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAVURE_OPTIONS", f"results={results}")
    weight = nn.Parameter(torch.zeros(4))
    weight.grad = torch.zeros(4)
    norms = []
    for value in range(1, 9):
        weight.grad.fill_(value)
        norms.append(gravure.clip_grad_norm_(weight, 100.0))
    assert [float(norm) for norm in norms] == [2.0 * value for value in range(1, 9)]


def test_a_norm_without_a_program_that_scales_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clip_programs, "_MOST_PROGRAMS", 1)
    clipped = Clipped()
    for _ in range(2):
        clipped.run("clip_grad_norm_", 0.1, error_if_nonfinite=True)


def test_one_tensor_none_and_some_without_a_gradient() -> None:
    weight = nn.Parameter(torch.ones(3))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert gravure.clip_grad_norm_(iter(()), 1.0) == 0
        assert gravure.clip_grad_norm_((p for p in ()), 1.0) == 0
    assert len(seen) == 1
    assert gravure.clip_grad_norm_(weight, 1.0) == 0
    gravure.clip_grad_value_([], 1.0)
    weight.grad = torch.full((3,), 2.0)
    gravure.clip_grad_value_([weight, nn.Parameter(torch.ones(2))], 1.0)
    assert weight.grad.tolist() == [1.0] * 3
    gravure.clip_grad_norm_(weight, 1e-3)
    assert float(weight.grad.norm()) < 2e-3


def test_sparse_and_repeated_gradients(caplog: pytest.LogCaptureFixture) -> None:
    found = []
    for owner in (nn.utils, gravure):  # torch 2.15 clips sparse gradients, earlier ones refuse them
        table = nn.Embedding(6, 4, sparse=True)
        table(torch.tensor([1, 2])).sum().backward()
        with caplog.at_level(logging.WARNING, "gravure"):
            try:
                norm = owner.clip_grad_norm_(table.parameters(), 1.0)
            except NotImplementedError as error:
                found.append(str(error))
            else:
                found.append((bits(norm), bits(table.weight.grad.to_dense())))
    assert found[0] == found[1]
    pair = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    for weight, owner in zip(pair, (nn.utils, gravure), strict=True):
        weight.grad = torch.ones(3)
        owner.clip_grad_norm_([weight, weight], 1.0)
    assert bits(pair[0].grad) == bits(pair[1].grad)


class Plain(nn.Parameter):
    """A class of somebody's, whose gradient is a matter of its own."""


def _gradients(kind: str, generator: torch.Generator) -> list[nn.Parameter]:
    """Three parameters with gradients of a kind apart."""
    shapes = [(4, 6), (5,), (6, 4)] if kind == "shapes" else [(4, 6), (5,), (4, 6)]
    dtype = {"complex": torch.complex64, "conjugated": torch.complex64}.get(kind, torch.float32)
    made = Plain if kind == "subclass" else nn.Parameter
    dtype = torch.float64 if kind == "dtype" else dtype
    parameters = []
    for shape in shapes:
        tensor = torch.randn(shape, generator=generator, dtype=dtype)
        parameters.append(made(torch.zeros_like(tensor)))
        parameters[-1].grad = tensor
    first = parameters[0]
    assert first.grad is not None
    if kind == "strides":
        first.grad = first.grad.t().contiguous().t()
    elif kind == "missing":
        first.grad = None
    elif kind == "conjugated":
        first.grad = first.grad.conj()
    elif kind == "twice":
        parameters[2] = first
    elif kind == "twins":
        parameters[2].grad = first.grad
    elif kind == "fewer":
        del parameters[0]
    return parameters


KINDS = ["plain", "shapes", "dtype", "complex", "subclass", "strides", "missing", "conjugated",
         "twice", "twins", "fewer"]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["clip_grad_norm_", "clip_grad_value_"])
def test_kinds_that_change_from_call_to_call(name: str, seed: int) -> None:
    """What the last call's program is not for it does not clip."""
    drawn = torch.Generator().manual_seed(seed)
    first = nn.Parameter(torch.zeros(3))  # by which its programs are known
    for call in range(60):
        kind = KINDS[int(torch.randint(len(KINDS), (), generator=drawn))]
        if name == "clip_grad_value_" and kind in ("complex", "conjugated"):
            kind = "plain"
        for _ in range(int(torch.randint(1, 4, (), generator=drawn))):
            state, seen = drawn.get_state(), []
            for owner in (nn.utils, gravure):
                drawn.set_state(state)
                parameters = _gradients(kind, drawn)
                first.grad = torch.ones(3)
                try:
                    result = getattr(owner, name)([first, *parameters], 0.05 * (1 + call % 5))
                except RuntimeError as error:  # foreach takes no conjugated ones
                    result = type(error).__name__
                grads = [p.grad for p in (first, *parameters)]
                seen.append([bits(result), *[None if g is None else bits(g) for g in grads]])
            assert seen[0] == seen[1], (kind, call)


def test_gradients_as_in_the_last_call_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes Python longer than the replay: a steady loop asks for nobody's layout."""
    asked = []
    own = clip_programs.layout_of
    monkeypatch.setattr(clip_programs, "layout_of", lambda g: asked.append(g) or own(g))
    clipped = Clipped()
    for i in range(8):
        clipped.run("clip_grad_norm_", 0.1 * (1 + i))
        clipped.run("clip_grad_value_", 0.1 * (1 + i))
    count = len(list(clipped.models[0].parameters()))
    assert len(asked) == 2 * count


def test_programs_go_with_their_model() -> None:
    clipped = Clipped()
    clipped.run("clip_grad_norm_", 1.0)
    assert clip_gradients._PROGRAMS
    del clipped
    gc.collect()
    assert not clip_gradients._PROGRAMS

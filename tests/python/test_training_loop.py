"""compile_step with schedule, clipping, scaler and accumulation: in the bits of the plain loop."""

from __future__ import annotations

import copy
import gc
import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from gravure.steps.recorded_step import record_step, state_of
from gravure.steps.scaling import Scaling
from optimizers_of_torch import SCHEDULES, TWO, Matrices, Scaled, kinds, patch_step
from optimizers_of_torch import make as of_kind
from running import bits, need_library
from torch import Tensor, optim
from torch.optim import Optimizer, lr_scheduler

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


class Net(nn.Module):
    """A layer that the loss does not reach, and one that it reaches in some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


Make = Callable[[Any], Optimizer]


class Pair:
    """The loop as people write it, and the same as one compiled step."""

    def __init__(
        self,
        make: Make,
        schedule: Callable[[Any], Any] | None = None,
        *,
        scaler: Callable[[], Any] | None = None,
        max_norm: float | None = None,
        clip_value: float | None = None,
        accumulate: int = 1,
        model: Callable[[], nn.Module] = Net,
        poison: bool = True,
    ) -> None:
        torch.manual_seed(0)
        self.models = [model()]
        self.models.append(copy.deepcopy(self.models[0]))
        self.optimizers = [make(m) for m in self.models]
        self.schedulers = [schedule(o) if schedule else None for o in self.optimizers]
        self.scalers = [scaler() if scaler else None for _ in range(2)]
        self.max_norm, self.clip_value, self.accumulate = max_norm, clip_value, accumulate
        self.calls = 0
        self.norm: Tensor | None = None
        self.step = gravure.compile_step(
            self.loss_of(self.models[1]),
            optimizer=self.optimizers[1],
            scheduler=self.schedulers[1],
            scaler=self.scalers[1],
            max_norm=max_norm,
            clip_value=clip_value,
            accumulate=accumulate,
            options={"poison": poison},
        )

    @staticmethod
    def loss_of(model: nn.Module) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        def loss(x: Tensor) -> tuple[Tensor, Tensor]:
            y = model(x)
            return y.square().mean() / 3, y

        return loss

    def eager(self, x: Tensor) -> tuple[Tensor, Tensor]:
        model, optimizer, scaler = self.models[0], self.optimizers[0], self.scalers[0]
        scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
        loss, y = self.loss_of(model)(x)
        scaler.scale(loss).backward()
        self.calls += 1
        if self.calls % self.accumulate == 0:
            self.update(optimizer, scaler)
        return loss, y

    def update(self, optimizer: Optimizer, scaler: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if self.max_norm is not None:
            scaler.unscale_(optimizer)
            self.norm = nn.utils.clip_grad_norm_(parameters, self.max_norm)
        if self.clip_value is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_value_(parameters, self.clip_value)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if self.schedulers[0] is not None:
            self.schedulers[0].step()

    def run(self, steps: int, *, scale: float = 1.0) -> None:
        for _ in range(steps):
            x = torch.randn(5, 8) * scale
            found, expected = self.step(x), self.eager(x)
            assert list(map(bits, found)) == list(map(bits, expected))
            self.compare()

    def each(self, change: Callable[[Any, Any], Any]) -> list[Any]:
        return [change(*both) for both in zip(self.models, self.optimizers, strict=True)]

    def compare(self) -> None:
        one, other = self.each(_all_of)
        assert one == other
        if self.max_norm is not None and self.norm is not None:
            assert bits(self.step.grad_norm()) == bits(self.norm)  # type: ignore[attr-defined]
        if self.scalers[0] is not None:
            assert str(self.scalers[0].state_dict()) == str(self.scalers[1].state_dict())

    def replays(self, name: str = "replays") -> list[int]:
        """Of the program that has the update in it, and of that of gradients alone."""
        compilers = self.step.gravure_step.compilers()  # type: ignore[attr-defined]
        programs = [[p for g in c.graphs for p in g.report().programs] for c in compilers]
        return [sum(p.stats[name] for p in each) for each in programs]

    def uncaptured(self) -> int:
        return sum(self.replays("uncaptured_steps"))

    def compilations(self) -> int:
        compilers = self.step.gravure_step.compilers()  # type: ignore[attr-defined]
        return sum(compiler.programs for compiler in compilers)


def _all_of(model: nn.Module, optimizer: Optimizer) -> list[Any]:
    found: list[Any] = [[g["lr"] for g in optimizer.param_groups]]
    for name, p in model.named_parameters():
        found.append((name, bits(p), bits(p.grad)))
        found += [(name, k, bits(v)) for k, v in optimizer.state.get(p, {}).items()]
    return found


def sgd(model: nn.Module, **settings: Any) -> Optimizer:
    return optim.SGD(model.parameters(), 0.1, momentum=0.9, **settings)


def adamw(model: nn.Module, **settings: Any) -> Optimizer:
    return optim.AdamW(model.parameters(), 0.02, **settings)


def fused(model: nn.Module) -> Optimizer:
    return adamw(model, fused=True)


def cosine(optimizer: Optimizer) -> Any:
    return lr_scheduler.CosineAnnealingLR(optimizer, 30)


def one_cycle(optimizer: Optimizer) -> Any:
    return lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=40)


def scaler() -> Any:
    return torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)


MAKES = [sgd, adamw, fused]


# ---- numbers


@pytest.mark.parametrize("schedule", [cosine, one_cycle])
@pytest.mark.parametrize("make", MAKES)
def test_a_schedule_compiles_nothing_after_the_first_steps(make: Make, schedule: Any) -> None:
    pair = Pair(make, schedule)
    pair.run(3)
    made = pair.compilations()
    pair.run(17)  # more values than Dynamo compiles kinds
    assert pair.compilations() == made


def test_every_number_of_a_group_is_read_at_each_step() -> None:
    pair = Pair(adamw)
    for i in range(12):
        settings = {"lr": 0.01 * (1 + i), "betas": (0.9 - 0.01 * i, 0.99), "eps": 1e-8 * (1 + i)}
        pair.each(lambda _, o, settings=settings: o.param_groups[0].update(settings))
        pair.run(1)
    assert pair.compilations() <= 2


def test_a_rate_of_zero_keeps_its_sign() -> None:
    pair = Pair(lambda m: optim.SGD(m.parameters(), 0.0))
    for rate in (0.0, 0.0, 0.0, 0.0, -0.0, 0.0, -0.0):
        pair.each(lambda _, o, rate=rate: o.param_groups[0].update(lr=rate))
        for model in pair.models:
            model.second.bias.data.fill_(-0.0)  # which shows it
        pair.run(1)


def test_a_branch_on_a_number_compiles_once_a_branch() -> None:
    pair = Pair(sgd)
    for decay in (0.1, 0.0, 0.2, 0.0, 0.3, 0.0, 0.4):
        pair.each(lambda _, o, d=decay: o.param_groups[0].update(weight_decay=d))
        pair.run(1)
    assert pair.compilations() <= 3


@pytest.mark.parametrize("kind", [optim.RAdam, optim.NAdam, optim.Adagrad, optim.ASGD])
def test_steps_that_branch_on_their_count(kind: Any) -> None:
    pair = Pair(lambda m: kind(m.parameters(), 0.02), cosine)
    pair.run(12)
    assert pair.compilations() <= 4


def test_an_optimizer_that_reads_what_it_computes(caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair(lambda m: optim.Adafactor(m.parameters(), 0.02), cosine)
    with caplog.at_level(logging.WARNING, "gravure"):
        pair.run(6)
    said = [r.getMessage() for r in caplog.records if "behind the step's program" in r.getMessage()]
    assert len(said) == 1


# ---- the whole of torch.optim


@pytest.mark.filterwarnings("ignore:.*epoch parameter.*")
@pytest.mark.parametrize("schedule", TWO)
@pytest.mark.parametrize(("kind", "way"), list(kinds()))
def test_all_of_torch_optim(kind: Any, way: dict[str, bool], schedule: str) -> None:
    pair = Pair(lambda m: of_kind(kind, way, m), SCHEDULES[schedule], model=Matrices)
    pair.run(10)
    assert pair.compilations() <= 4


@pytest.mark.filterwarnings("ignore:.*epoch parameter.*")
@pytest.mark.parametrize("make", [sgd, adamw])
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_schedulers(make: Make, schedule: Any) -> None:
    pair = Pair(make, schedule)
    pair.run(10)
    assert pair.compilations() <= 3


# ---- clipping


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("clip", [{"max_norm": 0.05}, {"max_norm": 1e3}, {"clip_value": 0.01}])
def test_clipping(make: Make, clip: dict[str, float]) -> None:
    pair = Pair(make, cosine, **clip)  # type: ignore[arg-type]
    pair.run(8)
    assert pair.compilations() <= 2


def test_clipping_is_over_all_that_the_optimizer_has() -> None:
    def make(model: nn.Module) -> Optimizer:
        groups = [{"params": model.second.parameters()}, {"params": model.first.parameters()}]
        return optim.AdamW([{**groups[0], "weight_decay": 0.0}, groups[1]], 0.02)

    Pair(make, cosine, max_norm=0.05).run(8)


def test_gradients_that_are_not_finite_are_clipped_as_eager_does() -> None:
    pair = Pair(sgd, max_norm=0.1)
    pair.run(4)
    pair.run(2, scale=1e25)
    pair.run(1)


@pytest.mark.parametrize("make", MAKES)
def test_memory_that_is_not_poisoned(make: Make) -> None:
    """As everybody's is: what was freed keeps its bytes until somebody else has them."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))

    pair = Pair(make, cosine, model=model, poison=False)
    pair.run(12)
    assert pair.uncaptured() <= 2


def _fewer(optimizer: Optimizer, parameters: list[Any]) -> None:
    optimizer.param_groups[0]["params"] = parameters[2:]


def _in_another_group(optimizer: Optimizer, parameters: list[Any]) -> None:
    optimizer.param_groups.clear()  # the next dictionary may come to have this one's id
    optimizer.add_param_group({"params": parameters[2:], "lr": 0.05})


def _popped(optimizer: Optimizer, parameters: list[Any]) -> None:
    optimizer.param_groups.pop()
    optimizer.add_param_group({"params": parameters[:2]})


def _others(optimizer: Optimizer, parameters: list[Any]) -> None:
    optimizer.param_groups[:] = [{**optimizer.param_groups[0], "params": parameters[2:]}]


def _in_place(optimizer: Optimizer, parameters: list[Any]) -> None:
    del optimizer.param_groups[0]["params"][:2]


@pytest.mark.parametrize("change", [_fewer, _in_another_group, _popped, _others, _in_place])
@pytest.mark.parametrize("make", [sgd, fused])
def test_lists_of_parameters_that_are_others(make: Make, change: Any) -> None:
    pair = Pair(make, model=lambda: nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 2)))
    pair.run(5)
    pair.each(lambda m, o: change(o, list(m.parameters())))
    for model in pair.models:
        for p in model.parameters():
            p.grad = None
    pair.run(4)
    pair.each(lambda m, o: o.param_groups[0].update(params=list(m.parameters())))
    for model in pair.models:
        for p in model.parameters():
            p.grad = None
    pair.run(4)


# ---- accumulation


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("clip", [None, 0.05])
def test_accumulation(make: Make, clip: float | None) -> None:
    pair = Pair(make, cosine, accumulate=3, max_norm=clip)
    pair.run(18)
    assert pair.compilations() == 2  # the last call of a cycle, and the others
    before, uncaptured = pair.replays(), pair.uncaptured()
    pair.run(6)
    replayed = [now - was for now, was in zip(pair.replays(), before, strict=True)]
    # AdamW reads its step counts between two partitions, where these are on the step's device.
    assert replayed == [2 * (2 if make is adamw else 1), 4]
    assert pair.uncaptured() == uncaptured


def test_accumulation_into_gradients_that_the_caller_has() -> None:
    """Held, replaced, cleared in place, of another layout, and missing."""
    pair = Pair(adamw, cosine, accumulate=3, max_norm=0.05)
    pair.run(9)
    held = []
    for i, change in enumerate((
        lambda p: held.append(p.grad),
        lambda p: setattr(p, "grad", p.grad.clone()),
        lambda p: p.grad.zero_(),
        lambda p: setattr(p, "grad", p.grad.t().contiguous().t() if p.dim() == 2 else p.grad),
        lambda p: setattr(p, "grad", None),
        lambda p: setattr(p, "grad", -p.grad),
    )):  # fmt: skip
        pair.run(1 + i % 2)
        pair.each(lambda m, _, change=change: change(m.first.weight))
        pair.run(2 - i % 2)
    before = pair.replays()
    pair.run(6)
    assert pair.replays()[0] > before[0]


def test_a_parameter_that_only_some_calls_of_a_cycle_reach() -> None:
    pair = Pair(sgd, cosine, accumulate=2)
    for i in range(6):
        pair.run(1)
        if i % 2:
            pair.each(lambda m, _: m.unused(torch.ones(3, 2)).sum().backward())
        pair.run(1)


def test_an_error_in_the_last_call_of_a_cycle_leaves_the_gradients() -> None:
    pair = Pair(adamw, accumulate=2)
    pair.run(9)
    before = pair.each(_all_of)
    handle = pair.models[1].first.weight.register_hook(lambda gradient: gradient)
    with pytest.raises(RuntimeError, match="has a hook"):
        pair.step(torch.randn(5, 8))
    assert pair.each(_all_of) == before
    handle.remove()
    pair.run(5)


def test_a_cycle_that_ends_early() -> None:
    pair = Pair(adamw, cosine, accumulate=4, max_norm=0.1)
    pair.run(6)
    pair.step.update()  # type: ignore[attr-defined]
    pair.step.update()  # type: ignore[attr-defined]  # nothing is left
    pair.update(pair.optimizers[0], torch.amp.GradScaler("cpu", enabled=False))
    pair.calls = 0
    pair.compare()
    pair.run(8)


# ---- random numbers


class Dropped(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(nn.functional.dropout(torch.tanh(self.first(x))))


@pytest.mark.parametrize("make", MAKES)
def test_a_schedule_of_a_model_that_draws_is_replayed(make: Make) -> None:
    """Numbers are not written into a capture that draws random numbers."""
    pair = Pair(make, cosine, model=Dropped, max_norm=0.05)
    for i in range(10):
        x, state = torch.randn(5, 8), torch.get_rng_state()
        found = pair.step(x)
        torch.set_rng_state(state)
        assert list(map(bits, found)) == list(map(bits, pair.eager(x)))
        pair.compare()
        if i == 5:
            before = pair.replays()[0], pair.uncaptured()
    assert pair.replays()[0] >= before[0] + 4 * 2  # gradients, and the update
    assert pair.uncaptured() == before[1]


# ---- a scaler


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("clip", [{}, {"max_norm": 0.05}, {"clip_value": 0.01}], ids=str)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_scaler(make: Make, clip: dict[str, float], accumulate: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a schedule whose first step was skipped
        pair = Pair(make, cosine, scaler=scaler, accumulate=accumulate, **clip)  # type: ignore[arg-type]
        pair.run(4)
        scale = pair.scalers[1].get_scale()
        pair.run(2, scale=float("inf"))  # is skipped, and the scale follows
        assert pair.scalers[1].get_scale() < scale
        pair.run(8)
        before = pair.replays()
        pair.run(4)
    assert pair.scalers[1].get_scale() != 1024.0
    whole = 0 if make is adamw else 4 // accumulate  # whose step counts on the host
    after = pair.replays()
    assert after[0] == before[0] + whole
    if accumulate == 1 and whole:
        assert len(after) == 1  # the program of gradients alone is gone
    assert pair.compilations() <= (2 if whole else 1)


def test_a_scaler_whose_first_steps_are_skipped() -> None:
    pair = Pair(sgd, scaler=scaler)
    pair.run(5, scale=float("inf"))
    assert not pair.optimizers[1].state
    pair.run(5)
    before = pair.replays()
    pair.run(2)
    assert pair.replays() == [before[0] + 2]


def test_a_scaled_loss_that_is_none_is_refused_in_words() -> None:
    model = Net()
    for nothing in (None, (), {"loss": 1.0}):
        step = gravure.compile_step(lambda x, it=nothing: it, optimizer=sgd(model), scaler=scaler())
        with pytest.raises(gravure.ExportError, match="return a loss"):
            step(torch.randn(2, 8))


def test_what_a_scaler_waits_for_is_said(caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair(adamw, scaler=scaler)
    with caplog.at_level(logging.WARNING, "gravure"):
        pair.run(5)
    (said,) = [text for text in _messages(caplog) if "GradScaler waits" in text]
    assert "fused=True" in said


@pytest.mark.parametrize(
    ("make", "cure"),
    [(optim.AdamW, "take fused=True"), (optim.NAdam, "take an optimizer that has `fused=True`")],
)
def test_step_counts_on_another_device_are_said_in_words(make: Any, cure: str) -> None:
    """As AdamW's on a GPU: meta stands for it. Not all can be fused."""
    parameter = nn.Parameter(torch.zeros(4, device="meta"))
    optimizer = make([parameter])
    parameter.grad = torch.zeros(4, device="meta")
    optimizer.step()
    grad_scaler = scaler()
    grad_scaler.scale(torch.ones(()))
    held = state_of(optimizer, [parameter])
    assert {each.tensor.device.type for each in held} == {"cpu", "meta"}
    scaling = Scaling(grad_scaler, unscales=False)
    with pytest.raises(gravure.ExportError, match=cure):
        record_step(optimizer, [parameter], [parameter.grad], held, [], scaler=scaling)


def test_a_scaler_that_is_disabled_midway() -> None:
    pair = Pair(sgd, cosine, scaler=scaler)
    pair.run(4)
    for each in pair.scalers:
        each._enabled = False
    pair.run(5)
    for each in pair.scalers:
        each._enabled = True
    pair.run(3)
    for each in pair.scalers:
        each.set_growth_interval(1)
    pair.run(3)


def test_a_stream_that_other_code_captures(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The numbers of a step would be in that graph for good."""
    pair = Pair(sgd, cosine)
    pair.run(4)
    (before,) = pair.replays()
    monkeypatch.setattr("gravure.steps.optimizer_step.is_being_captured", lambda: True)
    with caplog.at_level(logging.WARNING, "gravure"):
        pair.run(2)
    assert pair.replays()[0] == before
    assert any("is being captured by other code" in text for text in _messages(caplog))
    monkeypatch.undo()
    pair.run(2)
    assert pair.replays()[0] == before + 2


@pytest.mark.parametrize("make", [sgd, fused])
def test_a_scaler_is_changed_between_steps(make: Make) -> None:
    pair = Pair(make, scaler=scaler)
    pair.run(5)

    def each(change: Callable[[Any], Any]) -> None:
        for one in pair.scalers:
            change(one)
        pair.run(3)

    kept = [copy.deepcopy(one.state_dict()) for one in pair.scalers]
    each(lambda s: s.set_growth_factor(3.0))
    each(lambda s: s.set_backoff_factor(0.25))
    each(lambda s: s.set_growth_interval(2))
    each(lambda s: s.load_state_dict(kept[0]))
    each(lambda s: s.update(64.0))
    each(lambda s: setattr(s, "_scale", torch.full((), 128.0)))
    each(lambda s: setattr(s, "_growth_tracker", torch.full((), 1, dtype=torch.int32)))
    assert pair.compilations() <= 5


def test_a_scaler_of_ones_own_is_obeyed(caplog: pytest.LogCaptureFixture) -> None:
    class Halved(torch.amp.GradScaler):
        def update(self, new_scale: Any = None) -> None:
            super().update(new_scale)
            assert self._scale is not None
            self._scale.mul_(0.5)

    pair = Pair(sgd, scaler=lambda: Halved("cpu", init_scale=1024.0))
    with caplog.at_level(logging.WARNING, "gravure"):
        pair.run(6)
    assert [text for text in _messages(caplog) if "Halved is not torch.amp's own" in text]
    patched = Pair(fused, scaler=scaler)
    patched.run(4)
    for i, one in enumerate(patched.scalers):
        one.update = partial(_update_twice, one, one.update, i)
    patched.run(3)


def _update_twice(scaler: Any, update: Any, _: int, new_scale: Any = None) -> None:
    update(new_scale)
    scaler._scale.mul_(2.0)


def test_a_scaler_with_which_somebody_began() -> None:
    """Gradients of another optimizer, unscaled by hand: their inf is the next update's, too."""
    pair = Pair(sgd, scaler=scaler)
    others = [nn.Linear(2, 2) for _ in range(2)]
    others[1].load_state_dict(others[0].state_dict())
    aside = [optim.SGD(other.parameters(), 0.1) for other in others]
    pair.run(5)
    for factor in (1.0, float("inf"), 1.0):
        for other, optimizer, one in zip(others, aside, pair.scalers, strict=True):
            one.scale(other(torch.ones(1, 2)).sum() * factor).backward()
            one.unscale_(optimizer)
            optimizer.zero_grad()
        pair.run(2)


# ---- what a program knows nothing of


def _messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "gravure"]


def test_a_gradient_that_comes_from_elsewhere_is_applied_and_cleared() -> None:
    pair = Pair(sgd, cosine)
    for i in range(9):
        if i % 3 == 1:
            pair.each(lambda m, _: m.unused(torch.ones(3, 2)).sum().backward())
        if i % 3 == 2:
            pair.each(lambda m, _: m.first.weight.square().sum().backward())
        pair.run(1)


class Wrapped(Optimizer):
    """As Accelerate's: it calls another one's step."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.inner.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


@pytest.mark.parametrize("compiled", [False, True])
def test_an_optimizer_in_another_one_updates_in_each_step(compiled: bool) -> None:
    def make(model: nn.Module) -> Optimizer:
        inner = sgd(model)
        return Wrapped(gravure.compile_optimizer(inner) if compiled else inner)

    Pair(make).run(6)


def test_an_attribute_that_a_foreign_step_reads(caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair(lambda m: Scaled(m.parameters()), cosine)
    with caplog.at_level(logging.WARNING, "gravure"):
        for i in range(5):
            pair.each(lambda _, o, i=i: setattr(o, "scale", 1.0 + i))
            pair.run(1)
    said = [text for text in _messages(caplog) if "not one of torch.optim's own" in text]
    assert len(said) == 2  # of the step, and of the optimizer


def test_a_step_that_is_patched_on_the_instance_is_obeyed_in_each_step() -> None:
    pair = Pair(sgd)
    pair.run(4)
    calls: list[int] = []

    for i, optimizer in enumerate(pair.optimizers):
        patch_step(optimizer, partial(calls.append, i))
    pair.run(4)
    assert sorted(calls) == [0] * 4 + [1] * 4


def test_a_step_that_was_patched_before() -> None:
    def make(model: nn.Module) -> Optimizer:
        optimizer: Any = sgd(model)
        inner = optimizer.step
        optimizer.step = lambda closure=None: (inner(closure), inner(closure))
        return optimizer

    Pair(make).run(4)


def test_hooks_run_whenever_they_are_registered() -> None:
    pair = Pair(adamw)
    pair.run(3)
    calls: list[str] = []

    def hook(optimizer: Optimizer, *_: Any) -> None:
        calls.append("pre")
        optimizer.param_groups[0]["lr"] *= 0.8

    handles = pair.each(lambda _, o: o.register_step_pre_hook(hook))
    pair.run(4)
    assert calls == ["pre"] * 8
    for handle in handles:
        handle.remove()
    pair.run(3)


def test_a_zero_grad_of_ones_own() -> None:
    pair = Pair(sgd)
    pair.run(3)
    for optimizer in pair.optimizers:
        optimizer.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]
    pair.run(3)


def test_groups_state_and_checkpoints() -> None:
    def make(model: nn.Module) -> Optimizer:
        return optim.AdamW(model.first.parameters(), 0.01)

    pair = Pair(make, cosine, max_norm=0.1)
    pair.run(3)

    def add(model: nn.Module, optimizer: Any) -> None:
        optimizer.add_param_group(
            {"params": model.second.parameters(), "lr": 0.03, "initial_lr": 1}
        )

    pair.each(lambda m, o: m.zero_grad())
    for scheduler in pair.schedulers:
        scheduler.base_lrs.append(0.03)
    pair.each(add)
    pair.run(3)
    kept = pair.each(lambda m, o: copy.deepcopy((m.state_dict(), o.state_dict())))
    pair.run(3)
    for model, optimizer, (own, state) in zip(pair.models, pair.optimizers, kept, strict=True):
        model.load_state_dict(own)
        optimizer.load_state_dict(state)
    pair.run(4)
    pair.each(lambda _, o: o.state.clear())
    pair.run(4)


def test_an_evaluation_between_steps() -> None:
    pair = Pair(adamw, cosine)
    for _ in range(3):
        pair.run(3)
        pair.each(lambda m, _: m.eval())
        with torch.no_grad():
            one, other = (model(torch.ones(2, 8)) for model in pair.models)
        assert bits(one) == bits(other)
        pair.each(lambda m, _: m.train())


def test_a_scheduler_that_is_made_afterwards_does_not_warn() -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = sgd(model)
    step = gravure.compile_step(lambda x: model(x).square().mean(), optimizer=optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler = cosine(optimizer)
        for _ in range(4):
            step(torch.randn(5, 8))
            scheduler.step()
    assert optimizer.param_groups[0]["lr"] < 0.1


def test_a_step_that_is_dropped_goes() -> None:
    pair = Pair(sgd, cosine, accumulate=2)
    pair.run(6)
    assert gravure.drop_captures(pair.step) >= 1
    pair.run(6)
    before = len(gravure.report().graphs)
    del pair
    gc.collect()
    assert len(gravure.report().graphs) < before


# ---- bad input


def _step(**how: Any) -> Any:
    model = Net()
    how.setdefault("optimizer", sgd(model))
    return gravure.compile_step(lambda x: model(x).square().mean(), **how)


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({"max_norm": 1.0, "optimizer": None}, ValueError, "max_norm= needs optimizer="),
        ({"accumulate": 2, "optimizer": None}, ValueError, "accumulate= needs optimizer="),
        ({"max_norm": 1.0, "clip_value": 1.0}, ValueError, "clipped by one of them"),
        ({"max_norm": "1"}, TypeError, "max_norm: expected a number, not a str"),
        ({"max_norm": -1.0}, ValueError, "max_norm: expected more than 0, found -1"),
        ({"max_norm": float("nan")}, ValueError, "found nan"),
        ({"accumulate": 0}, ValueError, "at least 1, found 0"),
        ({"accumulate": 2.0}, ValueError, "whole number of at least 1, found 2.0"),
        ({"scaler": 3}, TypeError, "expected a torch.amp.GradScaler, not a int"),
        ({"scheduler": 3}, TypeError, "expected what has step.., not a int"),
        ({"optimizer": 3}, TypeError, "expected a torch.optim one, not a int"),
    ],
)
def test_arguments_that_do_not_go_together(how: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        _step(**how)


def test_schedulers_that_are_not_for_this_optimizer() -> None:
    model = Net()
    mine, other = sgd(model), sgd(Net())
    with pytest.raises(ValueError, match="it is for another optimizer, a SGD"):
        _step(optimizer=mine, scheduler=cosine(other))
    with pytest.raises(ValueError, match="takes a metric"):
        _step(optimizer=mine, scheduler=lr_scheduler.ReduceLROnPlateau(mine))


@pytest.mark.parametrize("kind", [optim.LBFGS, optim.SparseAdam])
def test_optimizers_that_no_step_can_end_with(kind: Any) -> None:
    with pytest.raises(gravure.ExportError, match="calls the loss again|takes sparse"):
        _step(optimizer=kind(Net().parameters()))


@pytest.mark.parametrize("steps", [0, 4])
def test_a_hook_on_a_gradient_is_refused_before_anything_runs(steps: int) -> None:
    pair = Pair(adamw, cosine)
    pair.run(steps)
    handle = pair.models[1].first.weight.register_hook(lambda gradient: gradient)
    before = _all_of(pair.models[1], pair.optimizers[1])
    with pytest.raises(RuntimeError, match="has a hook"):
        pair.step(torch.randn(5, 8))
    assert _all_of(pair.models[1], pair.optimizers[1]) == before
    handle.remove()
    pair.run(3)

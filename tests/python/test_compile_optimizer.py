"""gravure.compile_optimizer: eager's bits in anybody's loop, and what a program is not made for."""

from __future__ import annotations

import copy
import functools
import logging
import pickle
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from gravure.steps.compiled_update import CompiledUpdate
from gravure.torch_api import optimizers as of_optimizers
from optimizers_of_torch import (
    RUN_AS_THEY_ARE,
    SCHEDULES,
    TWO,
    Matrices,
    Scaled,
    kinds,
    patch_step,
)
from optimizers_of_torch import make as of_kind
from running import DEVICES, bits, need_library
from torch import Tensor, optim
from torch.optim import Optimizer, lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

Make = Callable[[Any], Optimizer]
Schedule = Callable[[Optimizer], Any]


class Net(nn.Module):
    """A layer that the loss does not reach, and one that it reaches in some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
        self.expert, self.unused = nn.Linear(4, 4), nn.Linear(2, 2)

    def forward(self, x: Tensor, *, expert: bool = False) -> Tensor:
        y = self.second(torch.tanh(self.first(x)))
        return self.expert(y) if expert else y


def none(_: Optimizer) -> None:
    return None


class Pair:
    """Equal models, the one with an optimizer as it is, the other with a compiled one."""

    def __init__(
        self,
        make: Make,
        schedule: Schedule = none,
        model: type[nn.Module] = Net,
        *,
        foreign: bool = False,
    ) -> None:
        torch.manual_seed(0)
        self.models = [model()]
        self.models.append(copy.deepcopy(self.models[0]))
        self.optimizers = [make(m) for m in self.models]
        compiled = gravure.compile_optimizer(self.optimizers[1], foreign=foreign)
        assert compiled is self.optimizers[1]
        self.schedulers = [schedule(o) for o in self.optimizers]
        self.seed = 0

    @property
    def update(self) -> CompiledUpdate:
        return self.optimizers[1].step.gravure_update  # type: ignore[attr-defined]

    def backward(self, **how: Any) -> None:
        self.seed += 1
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            optimizer.zero_grad()
            torch.manual_seed(self.seed)
            model(torch.randn(5, 8), **how).square().mean().backward()

    def step(self, **how: Any) -> None:
        self.backward(**how)
        for optimizer, scheduler in zip(self.optimizers, self.schedulers, strict=True):
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
        self.compare()

    def each(self, change: Callable[[nn.Module, Any], Any]) -> list[Any]:
        return [change(*both) for both in zip(self.models, self.optimizers, strict=True)]

    def compare(self) -> None:
        one, other = self.each(lambda m, o: _all_of(m, o))
        assert one == other


def _all_of(model: nn.Module, optimizer: Optimizer) -> list[Any]:
    found = []
    for name, p in model.named_parameters():
        found.append((name, bits(p), bits(p.grad)))
        found += [(name, k, bits(v)) for k, v in optimizer.state.get(p, {}).items()]
    return found


def adamw(model: nn.Module, **settings: Any) -> Optimizer:
    return optim.AdamW(model.parameters(), 0.02, **settings)


def sgd(model: nn.Module, **settings: Any) -> Optimizer:
    return optim.SGD(model.parameters(), 0.1, momentum=0.9, **settings)


def cosine(optimizer: Optimizer) -> Any:
    return lr_scheduler.CosineAnnealingLR(optimizer, 20)


# ---- numbers


@pytest.mark.parametrize("way", [{}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("make", [sgd, adamw])
def test_a_schedule_compiles_once(make: Any, way: dict[str, bool]) -> None:
    pair = Pair(lambda m: make(m, **way), cosine)
    for _ in range(25):
        pair.step()
    assert pair.update.programs == 1
    assert pair.update.own_steps == 1  # it makes the state


@pytest.mark.parametrize("device", DEVICES)
def test_large_parameters_on_each_device(device: str) -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(-1, 1, 100_000, device=device))

        def forward(self, x: Tensor) -> Tensor:
            return self.weight * x.sum().to(device)

    for make in (sgd, adamw):
        pair = Pair(make, cosine, Wide)
        for _ in range(12):
            pair.step()
        assert pair.update.programs == 1


def test_every_number_of_a_group_is_read_at_each_step() -> None:
    pair = Pair(adamw)
    for i in range(12):
        settings = {
            "lr": 0.01 * (1 + i),
            "betas": (0.9 - 0.01 * i, 0.99 - 0.001 * i),
            "eps": 1e-8 * (1 + i),
            "weight_decay": 0.1 / (1 + i),
        }
        pair.each(lambda _, o, settings=settings: o.param_groups[0].update(settings))
        pair.step()
    assert pair.update.programs == 1


def test_a_number_that_is_branched_on_compiles_once_a_branch() -> None:
    pair = Pair(adamw)
    for decay in (0.1, 0.0, 0.2, 0.0, 0.3, 0.0, 0.4):
        pair.each(lambda _, o, d=decay: o.param_groups[0].update(weight_decay=d))
        pair.step()
    assert pair.update.programs == 2


def test_a_setting_that_is_structure_compiles_once_a_value() -> None:
    pair = Pair(sgd)
    for i in range(10):
        pair.each(lambda _, o, i=i: o.param_groups[0].update(maximize=i % 2 == 1))
        pair.step()
    assert pair.update.programs == 2


def test_a_step_count_that_is_set_is_used() -> None:
    pair = Pair(adamw)
    for count in (3.0, 100.0, 2.0**24):
        pair.step()
        pair.each(lambda m, o, c=count: o.state[m.first.weight]["step"].fill_(c))
        pair.step()


# ---- the whole of torch.optim


@pytest.mark.filterwarnings("ignore:.*epoch parameter.*")
@pytest.mark.parametrize("schedule", TWO)
@pytest.mark.parametrize(("kind", "way"), list(kinds()))
def test_all_of_torch_optim(kind: Any, way: dict[str, bool], schedule: str) -> None:
    pair = Pair(lambda m: of_kind(kind, way, m), SCHEDULES[schedule], Matrices)
    for _ in range(10):
        pair.step()
    if kind.__name__ in RUN_AS_THEY_ARE:
        assert pair.update.own_steps == 10
    else:
        assert pair.update.own_steps <= 2
        assert pair.update.programs <= 3


@pytest.mark.filterwarnings("ignore:.*epoch parameter.*")
@pytest.mark.parametrize("make", [sgd, adamw])
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_schedulers(make: Make, schedule: Schedule) -> None:
    pair = Pair(make, schedule)
    for _ in range(10):
        pair.step()
    assert pair.update.programs <= 3


# ---- what a program knew nothing of, or kept for ever


class Wrapped(Optimizer):
    """As Accelerate's: it calls another one's step."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def test_products_under_autocast() -> None:
    class Matrix(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(-1, 1, 32).view(8, 4))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    pair = Pair(lambda m: optim.Muon(m.parameters(), 0.02), cosine, Matrix)
    for i in range(9):
        pair.backward()
        with torch.autocast("cpu", torch.float16, enabled=i % 4 == 3):
            pair.each(lambda _, o: o.step())
        pair.compare()
    assert pair.update.own_steps == 1 and pair.update.programs == 2


def test_an_optimizer_in_another_one_updates_in_each_step() -> None:
    pair = Pair(sgd, cosine)
    wrapped = [Wrapped(o) for o in pair.optimizers]
    for _ in range(6):
        pair.backward()
        for w in wrapped:
            w.step()
        pair.compare()
    assert pair.update.programs == 1


@pytest.mark.parametrize("foreign", [False, True])
def test_an_attribute_that_a_foreign_step_reads(
    foreign: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def make(model: Any) -> Optimizer:
        return Scaled([*model.first.parameters(), *model.second.parameters()])

    with caplog.at_level(logging.WARNING, "gravure"):
        pair = Pair(make, foreign=foreign)
        for i in range(4):
            pair.each(lambda _, o, i=i: setattr(o, "scale", 1.0 + i))
            pair.step()
    said = [r.getMessage() for r in caplog.records if "Scaled" in r.getMessage()]
    if foreign:
        assert pair.update.programs == 4  # the attribute is part of what a program is for
        assert not said
    else:
        assert len(said) == 1 and "foreign=True" in said[0]


def test_a_gradient_that_comes_from_elsewhere_is_applied() -> None:
    pair = Pair(sgd)
    for i in range(8):
        pair.backward()
        if i % 2:
            pair.each(lambda m, _: m.unused(torch.ones(3, 2)).sum().backward())
        pair.each(lambda _, o: o.step())
        pair.compare()


def test_a_step_that_is_patched_on_the_instance_is_obeyed_in_each_step() -> None:
    pair = Pair(sgd)
    calls: list[int] = []

    for i, optimizer in enumerate(pair.optimizers):
        patch_step(optimizer, partial(calls.append, i))
    for _ in range(4):
        pair.step()
    assert calls == [0, 1] * 4


def test_hooks_run_whenever_they_are_registered() -> None:
    pair = Pair(adamw)
    calls: list[Any] = []
    for i in range(5):
        if i == 2:
            pair.each(lambda _, o: o.register_step_pre_hook(lambda *a: calls.append("pre")))
            pair.each(lambda _, o: o.register_step_post_hook(lambda *a: calls.append("post")))
        pair.step()
    assert calls == ["pre", "post"] * 6
    assert pair.update.own_steps == 1
    found = register_optimizer_step_post_hook(lambda *a: calls.append("all"))
    try:
        pair.step()
    finally:
        found.remove()
    assert calls.count("all") == 2


def test_a_hook_that_changes_a_number_or_a_gradient() -> None:
    pair = Pair(sgd)

    def hook(optimizer: Optimizer, *_: Any) -> None:
        group = optimizer.param_groups[0]
        group["lr"] *= 0.8
        torch.nn.utils.clip_grad_norm_(group["params"], 0.1)

    pair.each(lambda _, o: o.register_step_pre_hook(hook))
    for _ in range(6):
        pair.step()
    assert pair.update.programs == 1


# ---- what people do with an optimizer


def test_parameters_without_a_gradient_in_some_steps() -> None:
    pair = Pair(adamw, cosine)
    for i in range(14):
        pair.step(expert=i % 3 == 1)
    assert pair.update.own_steps <= 3


def test_groups_are_added() -> None:
    def make(model: nn.Module) -> Optimizer:
        return optim.AdamW(model.first.parameters(), 0.01)

    pair = Pair(make)

    def add(model: nn.Module, optimizer: Any) -> None:
        group = {"lr": 0.03, "betas": (0.8, 0.9)}
        optimizer.add_param_group({"params": model.second.parameters(), **group})

    for i in range(8):
        if i == 4:
            pair.each(add)
        pair.step()
    assert pair.update.programs == 2


def test_state_is_loaded_and_cleared() -> None:
    pair = Pair(adamw, cosine)
    for _ in range(4):
        pair.step()
    saved = pair.each(lambda _, o: copy.deepcopy(o.state_dict()))
    for _ in range(3):
        pair.step()
    for optimizer, state in zip(pair.optimizers, saved, strict=True):
        optimizer.load_state_dict(state)
    for _ in range(3):
        pair.step()
    assert pair.update.programs == 1
    pair.each(lambda _, o: o.state.clear())
    for _ in range(3):
        pair.step()


def test_state_that_is_replaced_is_used() -> None:
    pair = Pair(sgd)
    for i in range(6):
        if i == 3:
            for model, optimizer in zip(pair.models, pair.optimizers, strict=True):
                state = optimizer.state[model.first.weight]
                state["momentum_buffer"] = torch.full_like(state["momentum_buffer"], 0.5)
        pair.step()
    assert pair.update.programs == 1


def test_a_copy_and_a_pickle_are_the_optimizers_own() -> None:
    pair = Pair(adamw)
    for _ in range(3):
        pair.step()
    kept = pair.optimizers
    states = [o.state_dict() for o in kept]
    assert str(states[0]) == str(states[1])
    for copied in (copy.deepcopy(kept[1]), pickle.loads(pickle.dumps(kept[1]))):
        assert type(copied) is optim.AdamW
        assert "step" not in vars(copied)


def test_a_scheduler_that_was_there_before() -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = adamw(model)
    scheduler = cosine(optimizer)
    gravure.compile_optimizer(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # that it was called before the optimizer
        for _ in range(3):
            model(torch.randn(5, 8)).square().mean().backward()
            optimizer.step()
            scheduler.step()
    assert optimizer.step.gravure_update.programs == 1  # type: ignore[attr-defined]


def test_once_more_is_the_same() -> None:
    optimizer = gravure.compile_optimizer(sgd(Net()))
    step = optimizer.step
    cosine(optimizer)
    assert gravure.compile_optimizer(optimizer) is optimizer
    assert optimizer.step.gravure_update is step.gravure_update  # type: ignore[attr-defined]


# ---- bad input


def test_a_closure_is_called() -> None:
    pair = Pair(sgd)
    for _ in range(3):
        pair.step()
    pair.backward()
    losses = pair.each(lambda m, o: o.step(lambda: m(torch.ones(2, 8)).sum().item()))
    assert losses[0] == losses[1] is not None
    pair.compare()


def test_a_sparse_gradient() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(6, 4, sparse=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.table(x.abs().long() % 6)

    pair = Pair(lambda m: optim.SGD(m.parameters(), 0.1), model=Table)
    for _ in range(3):
        pair.backward()
        pair.each(lambda _, o: o.step())
        assert bits(pair.models[0].table.weight) == bits(pair.models[1].table.weight)
    assert pair.update.own_steps == 3


def test_a_step_without_gradients_changes_nothing() -> None:
    pair = Pair(adamw)
    pair.each(lambda _, o: o.step())
    pair.compare()
    for _ in range(3):
        pair.step()
    pair.each(lambda _, o: o.zero_grad())
    pair.each(lambda _, o: o.step())
    pair.compare()


@pytest.mark.parametrize("other", ["meta", *DEVICES[1:]])
@pytest.mark.parametrize("way", [{"foreach": True}, {"foreach": False}], ids=str)
def test_a_parameter_on_another_device(other: str, way: dict[str, bool]) -> None:
    class Apart(Net):
        def __init__(self) -> None:
            super().__init__()
            self.far = nn.Parameter(torch.ones(3, device=other))

    pair = Pair(lambda m: adamw(m, **way), cosine, Apart)
    for _ in range(5):
        pair.backward()
        for m, o, s in zip(pair.models, pair.optimizers, pair.schedulers, strict=True):
            m.far.grad = torch.full_like(m.far, 0.5)
            o.step()
            s.step()
        one, other_side = ([bits(p) for n, p in m.named_parameters() if n != "far" or p.is_cuda]
                           for m in pair.models)  # fmt: skip
        assert one == other_side


def test_a_scaler_that_is_left_in_a_fused_optimizer() -> None:
    pair = Pair(lambda m: adamw(m, fused=True))
    for _ in range(3):
        pair.step()
    for optimizer in pair.optimizers:
        optimizer.found_inf = torch.ones(())  # type: ignore[attr-defined]
    pair.step()  # is skipped
    for optimizer in pair.optimizers:
        del optimizer.found_inf  # type: ignore[attr-defined]
    pair.step()


def test_no_optimizer_and_no_option() -> None:
    with pytest.raises(TypeError, match="expected a torch.optim one, not a Linear"):
        gravure.compile_optimizer(nn.Linear(2, 2))  # type: ignore[type-var]
    with pytest.raises(ValueError, match="poision"):
        gravure.compile_optimizer(sgd(Net()), options={"poision": True})
    with pytest.raises(ValueError, match="codegen"):
        gravure.compile_optimizer(sgd(Net()), options={"codegen": "aten"})


def test_a_replaced_step_is_refused_before_anything_changes() -> None:
    optimizer = sgd(Net())
    own = lambda closure=None: None  # noqa: E731
    optimizer.step = own  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="somebody replaced the step of this SGD"):
        gravure.compile_optimizer(optimizer)
    assert optimizer.step is own


def test_a_program_raises_what_eager_raises() -> None:
    pair = Pair(adamw)
    for _ in range(3):
        pair.step()
    pair.each(lambda _, o: o.param_groups[0].update(betas=(1.0, 0.99)))
    pair.backward()
    for optimizer in pair.optimizers:
        with pytest.raises(ZeroDivisionError):
            optimizer.step()


# ---- what calls the step


@pytest.mark.parametrize("make", [sgd, adamw, lambda m: adamw(m, fused=True)])
def test_a_closure_that_runs_the_loss_is_called_first(make: Make) -> None:
    pair = Pair(make, cosine)
    for i in range(6):

        def one(model: nn.Module, optimizer: Any, i: int = i) -> Any:
            def closure() -> Tensor:
                optimizer.zero_grad()
                torch.manual_seed(i)
                loss = model(torch.randn(5, 8)).square().mean()
                loss.backward()
                return loss

            with torch.no_grad():
                return optimizer.step(closure)

        losses = pair.each(one)
        assert bits(losses[0]) == bits(losses[1])
        pair.compare()
    assert pair.update.own_steps == 1


@pytest.mark.parametrize("way", [{}, {"fused": True}], ids=str)
@pytest.mark.parametrize("make", [sgd, adamw])
@pytest.mark.parametrize("unscales", [False, True])
def test_a_scaler_that_calls_the_step(make: Any, way: dict[str, bool], unscales: bool) -> None:
    pair = Pair(lambda m: make(m, **way), cosine)
    scalers = [torch.amp.GradScaler("cpu", 256.0, growth_interval=3) for _ in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a schedule whose first step was skipped
        for i in range(10):
            torch.manual_seed(i)
            x = torch.randn(5, 8) * (1e25 if i in (5, 6) else 1)
            for k, scaler in enumerate(scalers):
                optimizer = pair.optimizers[k]
                optimizer.zero_grad()
                scaler.scale(pair.models[k](x).square().mean()).backward()
                if unscales:
                    scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
                pair.schedulers[k].step()
            pair.compare()
            assert scalers[0].get_scale() == scalers[1].get_scale()
    assert pair.update.own_steps == 1


def test_a_parameter_that_comes_twice() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pair = Pair(lambda m: optim.SGD([m.first.weight, m.first.weight], 0.1, momentum=0.9))
    for _ in range(4):
        pair.step()


def test_a_parameter_on_another_device_leaves_the_step_to_the_optimizer() -> None:
    optimizers: list[Any] = []
    for _ in range(2):
        torch.manual_seed(0)
        parameters = [torch.randn(3), torch.randn(2, device="meta")]
        optimizers.append(optim.SGD([p.requires_grad_() for p in parameters], 0.1, momentum=0.9))
    gravure.compile_optimizer(optimizers[1])
    for i in range(5):
        for optimizer in optimizers:
            for p in optimizer.param_groups[0]["params"]:
                p.grad = torch.full_like(p, i + 1.0)
            optimizer.step()
        one, other = (o.param_groups[0]["params"][0] for o in optimizers)
        assert bits(one) == bits(other)
    assert optimizers[1].step.gravure_update.own_steps == 5


def test_who_shares_a_tensor_of_a_group_with_whom() -> None:
    rates = torch.tensor(0.1), torch.tensor(0.5)

    def make(pattern: str) -> tuple[Optimizer, list[nn.Parameter]]:
        parameters = [nn.Parameter(torch.ones(3)) for _ in pattern]
        groups = [
            {"params": [p], "lr": rates["AB".index(which)]}
            for p, which in zip(parameters, pattern, strict=True)
        ]
        return optim.AdamW(groups, fused=True), parameters

    both = [make("ABAB") for _ in range(2)]
    gravure.compile_optimizer(both[1][0])
    for pattern in ("ABAB", "ABBB", "AABB", "ABAB", "BABA"):
        for _ in range(3):
            for optimizer, parameters in both:
                for group, which in zip(optimizer.param_groups, pattern, strict=True):
                    group["lr"] = rates["AB".index(which)]
                for p in parameters:
                    p.grad = torch.ones_like(p)
                optimizer.step()
            assert list(map(bits, both[0][1])) == list(map(bits, both[1][1])), pattern


def test_state_whose_contents_are_moved() -> None:
    """As what moves an optimizer to another device does: each state's `.data`."""
    pair = Pair(sgd)
    for _ in range(4):
        pair.step()
    for dtype in (torch.float64, torch.float32):
        for _, optimizer in zip(pair.models, pair.optimizers, strict=True):
            for state in optimizer.state.values():
                state["momentum_buffer"].data = state["momentum_buffer"].data.to(dtype)
        for _ in range(5):
            pair.step()
    assert pair.update.own_steps < 8


@pytest.mark.parametrize("copies", [False, True])
def test_a_class_whose_step_is_replaced(copies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(optim.SGD):
        pass

    for kind in (optim.SGD, Own):
        pair = Pair(partial(_of_class, kind), foreign=True)
        hooks: list[Any] = []
        for optimizer in pair.optimizers:
            optimizer.register_step_pre_hook(partial(_note, hooks))
        for _ in range(4):
            pair.step()
        own = kind.step

        def step(self: Any, closure: Any = None, own: Any = own) -> Any:
            with torch.no_grad():
                torch._foreach_mul_(self.param_groups[0]["params"], 0.5)
            return own(self, closure)

        monkeypatch.setattr(kind, "step", functools.wraps(own)(step) if copies else step)
        hooks.clear()
        for _ in range(3):
            pair.step()
        assert hooks == [id(o) for o in pair.optimizers] * 3
        monkeypatch.setattr(kind, "step", own)
        for _ in range(4):
            pair.step()


def _note(hooks: list[Any], optimizer: Optimizer, *_: Any) -> None:
    hooks.append(id(optimizer))


def _of_class(kind: Any, model: nn.Module) -> Optimizer:
    return kind(model.parameters(), 0.1)  # type: ignore[no-any-return]


def test_kinds_are_not_kept_for_ever() -> None:
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.ones(2)) for _ in range(12)]
    optimizer = gravure.compile_optimizer(optim.SGD(parameters, 0.1))
    update = optimizer.step.gravure_update  # type: ignore[attr-defined]
    for _ in range(300):
        for p in parameters:
            p.grad = torch.ones(2) if torch.rand(()) < 0.5 else None
        optimizer.step()
    assert len(update._kinds) <= 64


def test_parameters_that_went_take_their_programs_with_them() -> None:
    optimizer = gravure.compile_optimizer(optim.SGD([nn.Parameter(torch.ones(2))], 0.1))
    update = optimizer.step.gravure_update  # type: ignore[attr-defined]
    for _ in range(20):  # more than programs at a time
        p = nn.Parameter(torch.ones(2))
        optimizer.param_groups[0]["params"][:] = [p]
        before = update.own_steps
        for _ in range(3):
            p.grad = torch.ones(2)
            optimizer.step()
        assert update.own_steps == before and len(update._kinds) == 1


def test_state_that_is_cleared_now_and_then() -> None:
    pair = Pair(adamw)
    for _ in range(5):
        for _ in range(4):
            pair.step()
        before = pair.update.own_steps
        pair.step()
        assert pair.update.own_steps == before
        pair.each(lambda _, o: o.state.clear())


def test_kernels_are_chosen_by_parameters_that_have_a_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen: list[Any] = []

    def choose(parameters: Any, differentiable: bool, use_fused: bool) -> tuple[bool, bool]:
        chosen.append(list(parameters))
        return False, True

    monkeypatch.setattr(of_optimizers, "_default_to_fused_or_foreach", choose)
    p, frozen = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, device="meta"))
    group = {"params": [p, frozen], "lr": 0.1}
    assert of_optimizers.chooses_foreach(optim.SGD, group, [p])
    assert len(chosen) == 1 and chosen[0][0] is p and len(chosen[0]) == 1
    group["lr"] = torch.tensor(0.1)
    assert of_optimizers.chooses_foreach(optim.SGD, group, [p])
    for kind in (optim.Adam, optim.AdamW):
        assert not of_optimizers.chooses_foreach(kind, group, [p])
        assert of_optimizers.chooses_foreach(kind, group | {"capturable": True}, [p])

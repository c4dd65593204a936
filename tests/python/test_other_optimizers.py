"""compile_step(fn, optimizer=…): what optimizer.step() does besides is done."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from gravure.steps.own_optimizers import OWN
from optimizers_of_torch import Scaled
from running import bits, need_library
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer, lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook
from training import Mlp, state_of

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


def loss_of(model: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: model(x).square().mean()


class Lookahead(Optimizer):
    """Wraps another, and goes its own way every second step."""

    def __init__(self, inner: Optimizer) -> None:
        super().__init__(inner.param_groups, inner.defaults)
        self.inner, self.steps = inner, 0

    def step(self, closure: Any = None) -> Any:
        self.inner.step()
        self.steps += 1
        if self.steps % 2 == 0:
            for group in self.param_groups:
                for p in group["params"]:
                    p.data.mul_(0.9)


class Named(SGD):
    """Overrides nothing of the step; but who knows."""


def test_the_optimizers_that_a_step_may_end_with() -> None:
    names = {kind.__name__ for kind in OWN}
    assert {"SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam", "Rprop"} <= names
    assert not {"Optimizer", "LBFGS", "SparseAdam"} & names
    parameter = nn.Parameter(torch.randn(2, 2))
    for kind in OWN:  # what they are like when nobody touched them
        gravure.compile_step(lambda x: (x * parameter).sum(), optimizer=kind([parameter]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: Lookahead(SGD(p, 0.1)), "Lookahead is not one of torch.optim's own"),
        (lambda p: Scaled(p, 0.1), "Scaled is not one of torch.optim's own"),
        (lambda p: Named(p, 0.1), "Named is not one of torch.optim's own"),
    ],
    ids=["wraps", "reads", "subclass"],
)
def test_other_optimizers_run_their_own_step(
    make: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    two = Two(lambda models: make(list(models[0].parameters())))
    step = gravure.compile_step(loss_of(two.models[0][0]), optimizer=two.optimizers[0])
    x = torch.randn(5, 8)
    with caplog.at_level(logging.WARNING, "gravure"):
        for _ in range(5):
            assert bits(step(x)) == bits(two.eager(0, x))
            two.same()
    said = [record.getMessage() for record in caplog.records]
    assert len([text for text in said if message in text and "behind" in text]) == 1


def _patched_step(optimizer: Optimizer) -> Any:
    own = optimizer.step
    optimizer.step = lambda closure=None: own()  # type: ignore[method-assign]


def _patched_by_wraps(optimizer: Optimizer) -> Any:
    own = optimizer.step

    @functools.wraps(own)
    def step(*args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs)

    optimizer.step = step  # type: ignore[method-assign]


def _patched_like_a_schedulers(optimizer: Optimizer) -> Any:
    _patched_by_wraps(optimizer)
    optimizer.step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]


def _compiled_step(optimizer: Optimizer) -> Any:
    """Of the optimizer that Gravure compiled; eager's own would have other bits."""
    if "step" not in vars(optimizer):
        return None
    optimizer.step = torch.compile(optimizer.step, backend="eager")  # type: ignore[method-assign]


def _patched_zero_grad(optimizer: Optimizer) -> Any:
    optimizer.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]


def _pre_hook(optimizer: Optimizer) -> Any:
    return optimizer.register_step_pre_hook(lambda *_: None)


def _post_hook(optimizer: Optimizer) -> Any:
    return optimizer.register_step_post_hook(lambda *_: None)


def _global_hook(_: Optimizer) -> Any:
    return register_optimizer_step_post_hook(lambda *_: None)


class _Undone:
    def __init__(self, undo: Callable[[], None]) -> None:
        self.remove = undo


def _patched_class(optimizer: Optimizer) -> Any:
    kind, own = type(optimizer), type(optimizer).step

    @functools.wraps(own)
    def step(self: Any, closure: Any = None) -> Any:
        with torch.no_grad():
            torch._foreach_mul_(self.param_groups[0]["params"], 0.5)
        return own(self, closure)

    kind.step = step  # type: ignore[method-assign]
    return _Undone(lambda: setattr(kind, "step", own))


CHANGES = [
    _patched_step,
    _patched_by_wraps,
    _patched_like_a_schedulers,
    _compiled_step,
    _patched_zero_grad,
    _pre_hook,
    _post_hook,
    _global_hook,
    _patched_class,
]


class Two:
    """The same model, optimizer and loop twice: as they are, and compiled."""

    def __init__(self, make: Callable[[list[nn.Module]], Optimizer], count: int = 2) -> None:
        ours = [Mlp() for _ in range(count)]
        self.models = ours, copy.deepcopy(ours)
        self.optimizers = [make(models) for models in self.models]

    def same(self) -> None:
        ours, eager = ([state_of(model) for model in models] for models in self.models)
        assert ours == eager

    def eager(self, which: int, x: Tensor) -> Tensor:
        loss = loss_of(self.models[1][which])(x)
        loss.backward()
        self.optimizers[1].step()
        self.optimizers[1].zero_grad()
        return loss.detach()


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_the_step_is_done_from_the_next_call_on(change: Any) -> None:
    two = Two(lambda models: SGD(models[0].parameters(), 0.1, momentum=0.9))
    step = gravure.compile_step(loss_of(two.models[0][0]), optimizer=two.optimizers[0])
    x = torch.randn(5, 8)

    def run(steps: int) -> None:
        for _ in range(steps):
            assert bits(step(x)) == bits(two.eager(0, x))
            two.same()

    run(4)
    handles = [change(optimizer) for optimizer in two.optimizers]
    try:
        run(3)
    finally:
        for handle in reversed(handles):
            if handle is not None:
                handle.remove()
    for optimizer in two.optimizers:
        for name in ("step", "zero_grad"):
            vars(optimizer).pop(name, None)
    run(3)


def _of_all(models: list[nn.Module]) -> Optimizer:
    return SGD([p for model in models for p in model.parameters()], 0.1, momentum=0.9)


@pytest.mark.parametrize("steps", [1, 6])
def test_gradients_of_other_parameters_are_applied_and_cleared(steps: int) -> None:
    two = Two(_of_all)
    step = gravure.compile_step(loss_of(two.models[0][0]), optimizer=two.optimizers[0])
    x = torch.randn(5, 8)
    for _ in range(steps):
        step(x)
        two.eager(0, x)
    two.same()
    for _ in range(3):
        for models in two.models:
            loss_of(models[1])(x).backward()
        step(x)
        two.eager(0, x)
        two.same()
    for _ in range(4):
        step(x)
        two.eager(0, x)
    two.same()


def test_a_group_that_is_added_later() -> None:
    two = Two(lambda models: SGD(models[0].parameters(), 0.1, momentum=0.9))
    step = gravure.compile_step(loss_of(two.models[0][0]), optimizer=two.optimizers[0])
    x = torch.randn(5, 8)
    for i in range(10):
        if i == 5:
            for models, optimizer in zip(two.models, two.optimizers, strict=True):
                optimizer.add_param_group({"params": list(models[1].parameters()), "lr": 0.5})
        step(x)
        two.eager(0, x)
        two.same()
    for models in two.models:
        loss_of(models[1])(x).backward()
    step(x)
    two.eager(0, x)
    two.same()


def test_two_steps_with_one_optimizer() -> None:
    two = Two(_of_all)
    steps = [gravure.compile_step(loss_of(m), optimizer=two.optimizers[0]) for m in two.models[0]]
    for i in range(14):
        x, which = torch.randn(5, 8), i % 2 if i < 10 else 0
        assert bits(steps[which](x)) == bits(two.eager(which, x))
        two.same()


def test_a_parameter_of_no_optimizer_keeps_its_gradient() -> None:
    two = Two(lambda models: AdamW(models[0].parameters(), 0.01, fused=True))

    def loss(models: list[nn.Module]) -> Callable[[Tensor], Tensor]:
        return lambda x: (models[0](x) + models[1](x)).square().mean()

    step = gravure.compile_step(loss(two.models[0]), optimizer=two.optimizers[0])
    for _ in range(6):
        x = torch.randn(5, 8)
        step(x)
        loss(two.models[1])(x).backward()
        two.optimizers[1].step()
        two.optimizers[1].zero_grad()
        two.same()


@pytest.fixture
def strict() -> Iterator[None]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("late", [False, True])
def test_schedulers_wrap_the_step_and_are_taken(late: bool) -> None:
    two = Two(lambda models: AdamW(models[0].parameters(), torch.tensor(0.01), fused=True))
    made = [] if late else [lr_scheduler.StepLR(o, 2, 0.5) for o in two.optimizers]
    step = gravure.compile_step(loss_of(two.models[0][0]), optimizer=two.optimizers[0])
    for i in range(9):
        if late and i == 4:
            made = [lr_scheduler.StepLR(o, 2, 0.5) for o in two.optimizers]
        x = torch.randn(5, 8)
        step(x)
        two.eager(0, x)
        two.same()
        for scheduler in made:
            scheduler.step()

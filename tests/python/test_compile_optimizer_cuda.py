"""compile_optimizer on a GPU: numbers that change are written into captured kernels."""

from __future__ import annotations

import copy
import itertools
import logging
import os
from collections.abc import Callable
from typing import Any

import gravure
import pytest
import torch
from gravure.steps.compiled_update import CompiledUpdate
from optimizers_of_torch import SCHEDULES, WHOLE, Matrices, kinds
from optimizers_of_torch import make as of_kind
from running import bits, need_library
from torch import Tensor, optim
from torch.optim import Optimizer, lr_scheduler

need_library()
pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

STEPS = 12
WARM = 10  # RAdam's second program begins with the sixth step
SHAPES = [(1000,), (64, 64), (3, 5, 7), (1,), (257, 129)]
SINGLE: dict[str, Any] = {"foreach": False}
FOREACH: dict[str, Any] = {"foreach": True}
FUSED: dict[str, Any] = {"fused": True}

Make = Callable[..., Optimizer]

CASES: list[tuple[str, Make, list[dict[str, Any]]]] = [
    ("sgd", lambda p, **k: optim.SGD(p, 0.1, **k), [SINGLE, FOREACH, FUSED]),
    ("sgd momentum", lambda p, **k: optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, **k),
     [SINGLE, FOREACH, FUSED]),
    ("sgd nesterov", lambda p, **k: optim.SGD(p, 0.1, momentum=0.9, nesterov=True, **k),
     [SINGLE, FOREACH, FUSED]),
    ("adam", lambda p, **k: optim.Adam(p, 0.01, weight_decay=0.01, **k),
     [SINGLE, FOREACH, FUSED]),
    ("adam amsgrad", lambda p, **k: optim.Adam(p, 0.01, amsgrad=True, **k),
     [SINGLE, FOREACH, FUSED]),
    ("adamw", lambda p, **k: optim.AdamW(p, 0.01, **k), [SINGLE, FOREACH, FUSED]),
    ("adamw maximize", lambda p, **k: optim.AdamW(p, 0.01, maximize=True, **k),
     [SINGLE, FOREACH, FUSED]),
    ("adagrad", lambda p, **k: optim.Adagrad(p, 0.1, lr_decay=0.1, **k), [SINGLE, FOREACH]),
    ("rmsprop", lambda p, **k: optim.RMSprop(p, 0.01, centered=True, momentum=0.9, **k),
     [SINGLE, FOREACH]),
    ("adadelta", lambda p, **k: optim.Adadelta(p, weight_decay=0.01, **k), [SINGLE, FOREACH]),
    ("adamax", lambda p, **k: optim.Adamax(p, weight_decay=0.01, **k), [SINGLE, FOREACH]),
    ("nadam", lambda p, **k: optim.NAdam(p, weight_decay=0.01, **k), [SINGLE, FOREACH]),
    ("radam", lambda p, **k: optim.RAdam(p, 0.01, weight_decay=0.01, **k), [SINGLE, FOREACH]),
    ("rprop", lambda p, **k: optim.Rprop(p, 0.01, **k), [SINGLE, FOREACH]),
    ("asgd", lambda p, **k: optim.ASGD(p, 0.01, **k), [SINGLE, FOREACH]),
]  # fmt: skip
ALL = [
    pytest.param(make, way, id=f"{name} {next(iter(way))} {next(iter(way.values()))}")
    for name, make, ways in CASES
    for way in ways
]


class Pair:
    """Equal parameters with an optimizer as it is, and with a compiled one."""

    def __init__(self, make: Make, shapes: Any = None, dtype: torch.dtype = torch.float32) -> None:
        self.sides: list[list[Tensor]] = []
        for _ in range(2):
            torch.manual_seed(0)
            self.sides.append(
                [torch.randn(s, device="cuda", dtype=dtype).requires_grad_()
                 for s in shapes or SHAPES]
            )  # fmt: skip
        self.optimizers = [make(side) for side in self.sides]
        gravure.compile_optimizer(self.optimizers[1])
        self.schedulers = [
            lr_scheduler.CosineAnnealingLR(o, 40, eta_min=0.001) for o in self.optimizers
        ]
        self.seed = 0

    @property
    def update(self) -> CompiledUpdate:
        return self.optimizers[1].step.gravure_update  # type: ignore[attr-defined]

    @property
    def programs(self) -> list[Any]:
        return [p for kind in self.update._kinds.values() for p in kind.programs]

    def stats(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for program in self.programs:
            for key, value in program.stats().items():
                total[key] = total.get(key, 0) + value
        return total

    def step(self) -> None:
        self.seed += 1
        for side, optimizer, scheduler in zip(
            self.sides, self.optimizers, self.schedulers, strict=True
        ):
            torch.manual_seed(self.seed)
            for p in side:
                grad = torch.randn_like(p) * 0.1
                if p.grad is None:
                    p.grad = grad
                else:
                    p.grad.copy_(grad)
            optimizer.step()
            scheduler.step()
        one, other = (
            [[bits(p), *map(bits, o.state.get(p, {}).values())] for p in side]
            for side, o in zip(self.sides, self.optimizers, strict=True)
        )
        assert one == other, f"step {self.seed}"


def said(pair: Pair) -> str:
    return "\n".join(p._program._program.remarks_text() for p in pair.programs)


@pytest.mark.parametrize(("make", "way"), ALL)
def test_law_3_each_step_is_a_replay_in_eagers_bits(make: Make, way: dict[str, Any]) -> None:
    pair = Pair(lambda p: make(p, **way))
    for _ in range(WARM):
        pair.step()
    if not pair.programs:
        pytest.skip("it is the optimizer's own step")
    ran = pair.programs[-1]  # of several, the one for the branches of late steps
    before = ran.stats()
    for _ in range(STEPS):
        pair.step()
    after = ran.stats()
    remarks = ran._program._program.remarks_text()
    states = ran._program._program.partition_states("step")
    assert set(states) == {"captured"}, remarks
    assert after["uncaptured_steps"] == before["uncaptured_steps"], remarks
    assert after["replays"] - before["replays"] == STEPS * len(states), remarks
    assert after["captures"] == before["captures"], remarks
    assert "guard-failed" not in remarks and "launch-failed" not in remarks, remarks
    assert after["written_numbers"] > 0, remarks


@pytest.mark.parametrize("way", [SINGLE, FOREACH, FUSED], ids=lambda w: next(iter(w)))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.float16], ids=str)
def test_law_1_other_types_of_parameters(dtype: torch.dtype, way: dict[str, Any]) -> None:
    pair = Pair(lambda p: optim.AdamW(p, 0.01, **way), dtype=dtype)
    for _ in range(WARM + STEPS):
        pair.step()
    assert pair.stats()["written_numbers"] > 0, said(pair)


def test_law_3_a_learning_rate_of_zero_and_of_one() -> None:
    pair = Pair(lambda p: optim.SGD(p, 0.1, momentum=0.9, foreach=True))
    for _ in range(WARM):
        pair.step()
    before = pair.stats()["uncaptured_steps"]
    for lr in (0.0, 1.0, 0.3, 2.0, 0.0, -0.1, 1e-30):
        for optimizer in pair.optimizers:
            optimizer.param_groups[0]["lr"] = lr
        pair.step()
    assert pair.stats()["uncaptured_steps"] == before, said(pair)


def test_a_schedule_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair(lambda p: optim.AdamW(p, 0.01))
    with caplog.at_level(logging.WARNING):
        for _ in range(WARM + STEPS):
            pair.step()
    assert "guard-failed" not in caplog.text


#: Of all optimizers with all schedulers; which third: GRAVURE_THIRD.
PRODUCT = [
    pytest.param(*pair.values, schedule, id=f"{pair.id}-{schedule}")
    for i, (pair, schedule) in enumerate(itertools.product(kinds(), SCHEDULES))
    if WHOLE or i % 3 == int(os.environ.get("GRAVURE_THIRD", "0"))
    if pair.id != "Adagrad-fused"  # which PyTorch has for CPUs alone
]


@pytest.mark.filterwarnings("ignore:.*epoch parameter.*")
@pytest.mark.parametrize(("kind", "way", "schedule"), PRODUCT)
def test_a_third_of_the_product(kind: Any, way: dict[str, bool], schedule: str) -> None:
    torch.manual_seed(0)
    models = [Matrices().cuda()]
    models += [copy.deepcopy(models[0]) for _ in range(2)]
    optimizers = [of_kind(kind, way, model) for model in models]
    schedulers = [SCHEDULES[schedule](optimizer) for optimizer in optimizers]
    gravure.compile_optimizer(optimizers[1])
    whole = gravure.compile_step(
        lambda x: models[2](x).square().mean(), optimizer=optimizers[2], scheduler=schedulers[2]
    )
    for step in range(10):
        x = torch.randn(5, 8, device="cuda")
        for i in range(2):
            models[i](x).square().mean().backward()
            optimizers[i].step()
            optimizers[i].zero_grad()
            schedulers[i].step()
        whole(x)
        found = [
            [o.param_groups[0]["lr"], [[bits(p), *map(bits, o.state[p].values())]
                                       for p in model.parameters()]]
            for model, o in zip(models, optimizers, strict=True)
        ]  # fmt: skip
        assert found[1] == found[0], f"compile_optimizer, step {step}"
        assert found[2] == found[0], f"compile_step, step {step}"

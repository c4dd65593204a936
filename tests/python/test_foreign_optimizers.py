"""compile_optimizer with optimizers that are not torch.optim's: programs where all that their code
reads is known, in eager's bits; else their own step, with a warning that names what is not."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import struct
import time
from collections.abc import Callable, Iterator
from math import sqrt
from pathlib import Path
from typing import Any

import gravure
import numpy
import optimizers_of_torch
import pytest
import torch
import torch.nn as nn
from running import DEVICES, bits, need_library
from torch import Tensor
from torch.optim import AdamW, Optimizer, lr_scheduler
from torch.optim.sgd import sgd as torch_sgd

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

FACTOR = 0.5
SEEN: list[int] = []


class Lion(Optimizer):
    """As its authors wrote it."""

    def __init__(self, params: Any, lr: float = 1e-3, betas: Any = (0.9, 0.99), decay: float = 0.1):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                grad = p.grad
                state = self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                exp_avg = state["exp_avg"]
                beta1, beta2 = group["betas"]
                update = exp_avg * beta1 + grad * (1 - beta1)
                p.add_(update.sign_(), alpha=-group["lr"])
                exp_avg.mul_(beta2).add_(grad, alpha=1 - beta2)
        return loss


class OldAdam(Optimizer):
    """Its count is an int in its state; it branches on it, and takes roots."""

    def __init__(self, params: Any, lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8, "warm": 6})

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state, grad = self.state[p], p.grad.data
                if not state:
                    state["step"] = 0
                    state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                beta1, beta2 = group["betas"]
                state["m"].mul_(beta1).add_(grad, alpha=1 - beta1)
                state["v"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
                denom = state["v"].sqrt().add_(group["eps"])
                rate = group["lr"] * math.sqrt(1 - beta2 ** state["step"])
                rate = rate / (1 - beta1 ** state["step"])
                if state["step"] < group["warm"]:
                    rate = rate * state["step"] / group["warm"]
                p.data.addcdiv_(state["m"], denom, value=-rate)


class Counted(Optimizer):
    """Its count, and a product of its rates, are its group's."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "k": 0, "product": 1.0, "pull": 2})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["k"] += 1
            group["product"] *= 0.9
            rate = group["lr"] * group["product"] / group["k"] ** 0.5
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(_pulled(p.grad, group["pull"]), alpha=-rate)


def _pulled(grad: Tensor, times: int, by: float = 0.3) -> Tensor:
    for _ in range(times):
        grad = grad * torch.rsqrt(grad.square().mean() + by) * FACTOR
    return grad


class Scaled(optimizers_of_torch.Scaled):
    """What its step calls reads an attribute, and calls what reads a global."""

    def factor(self) -> float:
        return self.scale * self.further()

    def further(self) -> float:
        return FACTOR


class Named(AdamW):
    """Overrides nothing of the step."""


def foreach(params: Any) -> Optimizer:
    weight = 0.5

    class Foreach(Optimizer):
        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                grads = [p.grad for p in group["params"] if p.grad is not None]
                taken = [p for p in group["params"] if p.grad is not None]
                torch._foreach_add_(taken, grads, alpha=-group["lr"] * weight)

    return Foreach(params, {"lr": 0.1})


def _kinds(state: dict[str, Any]) -> Any:
    return {k: bits(v) if isinstance(v, Tensor) else (type(v), repr(v)) for k, v in state.items()}


TAKEN = [Lion, OldAdam, Counted, lambda p: Scaled(p, 0.1), lambda p: Named(p, 0.01), foreach]


class Pair:
    def __init__(
        self, make: Callable[[Any], Optimizer], device: str = "cpu", *, scheduled: bool = True
    ) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(device)
        self.models = [model, copy.deepcopy(model)]
        self.optimizers = [make(list(m.parameters())) for m in self.models]
        gravure.compile_optimizer(self.optimizers[1], foreign=True)
        scheduled_ones = self.optimizers if scheduled else []
        self.schedulers = [lr_scheduler.CosineAnnealingLR(o, 20) for o in scheduled_ones]
        self.device = device

    def step(self, steps: int = 1) -> None:
        for _ in range(steps):
            x = torch.randn(5, 8, device=self.device)
            for m, o in zip(self.models, self.optimizers, strict=True):
                o.zero_grad()
                m(x).square().mean().backward()
                self.call(o)
            for s in self.schedulers:
                s.step()
            one, other = (
                [
                    str([{k: v for k, v in g.items() if k != "params"} for g in o.param_groups]),
                    [[bits(p), _kinds(o.state.get(p, {})), p.grad is None]
                     for p in m.parameters()],
                ]
                for m, o in zip(self.models, self.optimizers, strict=True)
            )  # fmt: skip
            assert one == other

    def call(self, optimizer: Any) -> None:
        optimizer.step()

    def each(self, change: Callable[[Any], Any]) -> None:
        for optimizer in self.optimizers:
            change(optimizer)

    @property
    def update(self) -> Any:
        return self.optimizers[1].step.gravure_update  # type: ignore[attr-defined]

    def captured(self, steps: int) -> None:
        """These run, and none of them is the optimizer's own."""
        before = self.update.own_steps
        self.step(steps)
        assert self.update.own_steps == before


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", TAKEN, ids=lambda m: getattr(m, "__name__", "").strip("<>"))
def test_what_its_code_reads_is_known(
    make: Any, device: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "gravure"):
        pair = Pair(make, device)
        pair.step(4)
        pair.captured(12)
    assert pair.update.programs <= 3
    assert not [r for r in caplog.records if "as it is" in r.getMessage()]


def test_ints_of_python_stay_ints() -> None:
    pair = Pair(Counted)
    pair.step(9)
    assert type(pair.optimizers[1].param_groups[0]["k"]) is int
    pair.each(lambda o: o.param_groups[0].update(k=100))
    pair.captured(3)
    state = copy.deepcopy(pair.optimizers[0].state_dict())
    pair.each(lambda o: o.load_state_dict(copy.deepcopy(state)))
    pair.captured(3)


def test_what_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(lambda p: Scaled(p, 0.1))
    pair.step(4)
    for i in range(3):
        pair.each(lambda o, i=i: setattr(o, "scale", 1.0 + i))
        pair.step(2)
    monkeypatch.setattr("test_foreign_optimizers.FACTOR", 0.25)
    pair.captured(2)
    monkeypatch.setattr(Scaled, "further", lambda self: 3.0)
    pair.captured(2)
    monkeypatch.setattr(Scaled, "scale", -1.0)
    pair.captured(2)
    plain = Scaled.step
    monkeypatch.setattr(Scaled, "step", lambda self, closure=None: plain(self))
    pair.step(3)


def test_a_refusal_is_said_once_also_by_a_step_around_it(caplog: pytest.LogCaptureFixture) -> None:
    """And nobody recommends what was done."""
    model = torch.nn.Linear(4, 1)
    optimizer = Asks(model.parameters())
    with caplog.at_level(logging.WARNING, "gravure"):
        gravure.compile_optimizer(optimizer, foreign=True)
        step = gravure.compile_step(lambda x: model(x).sum(), optimizer=optimizer)
        for _ in range(4):
            step(torch.randn(3, 4))
    said = [r.getMessage() for r in caplog.records]
    assert len([line for line in said if "runs as it is" in line]) == 1
    assert not [line for line in said if "foreign=True" in line]


def test_hooks_and_state() -> None:
    pair = Pair(Lion)
    pair.step(4)
    called: list[int] = []
    pair.each(lambda o: o.register_step_post_hook(lambda *_: called.append(1)))
    pair.step(3)
    assert len(called) == 6
    pair.each(lambda o: o.state.clear())
    pair.step(3)
    copied = copy.deepcopy(pair.optimizers[1])
    assert type(copied) is Lion and not hasattr(copied.step, "gravure_update")


def test_a_closure_and_a_parameter_without_a_gradient(caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair(Lion)
    pair.step(4)
    with caplog.at_level(logging.WARNING, "gravure"):
        found = []
        for m, o in zip(pair.models, pair.optimizers, strict=True):

            def closure(m: Any = m, o: Any = o) -> Tensor:
                o.zero_grad()
                loss = m(torch.ones(5, 8)).square().mean()
                loss.backward()
                return loss

            found.append(bits(o.step(closure)))
            o.param_groups[0]["params"][0].grad = None
            o.step()
        assert found[0] == found[1]
        pair.step(2)
    said = "\n".join(r.getMessage() for r in caplog.records)
    assert "a closure is called" in said and "not all of its parameters have a gradient" in said


# ---- what is not known


class _Base(Optimizer):
    notes: list[int] = []  # noqa: RUF012
    count = 0

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def update(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(p.grad, alpha=-group["lr"])


class Prints(_Base):
    def step(self, closure: Any = None) -> Any:
        print(end="")
        self.update()


class Timed(_Base):
    def step(self, closure: Any = None) -> Any:
        self.update()
        SEEN.append(int(time.time()))


class Counts(_Base):
    def step(self, closure: Any = None) -> Any:
        self.count += 1
        self.update()


class Asks(_Base):
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                if p.requires_grad:
                    p.data.add_(p.grad, alpha=-group["lr"])


class Replaces(_Base):
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.data = p.data - group["lr"] * p.grad


class Marks(_Base):
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                if getattr(p, "twice", False):
                    p.data.add_(p.grad, alpha=-group["lr"])
        self.update()


class Supers(_Base):
    def step(self, closure: Any = None) -> Any:
        super().update()


class Listed(_Base):
    def step(self, closure: Any = None) -> Any:
        self.notes.append(1)
        self.update()


class Imports(_Base):
    def step(self, closure: Any = None) -> Any:
        import random

        if random.random() < 2:
            self.update()


class Branches(_Base):
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad.norm() < 100:
                    p.data.add_(p.grad, alpha=-group["lr"])


class Settled(_Base):
    def step(self, closure: Any = None) -> Any:
        torch.set_num_threads(1)
        self.update()


class Returns(_Base):
    def step(self, closure: Any = None) -> Any:
        self.update()
        return 3


class Computed(_Base):
    @property
    def rate(self) -> float:
        return time.time() * 0 + 0.1

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(p.grad, alpha=-self.rate)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Prints, "print"), (Timed, "SEEN"), (Counts, "count"), (Asks, "requires_grad"),
        (Replaces, "sets or takes data"), (Marks, "getattr"), (Supers, "super"),
        (Listed, "notes"), (Imports, "random"), (Branches, "reads a tensor"),
        (Settled, "torch.set_num_threads"), (Returns, "returns"), (Computed, "rate is computed"),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)  # fmt: skip
def test_what_is_not_known_runs_as_it_is(
    kind: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "gravure"):
        pair = Pair(kind)
        pair.step(6)
    said = [r.getMessage() for r in caplog.records if "as it is" in r.getMessage()]
    assert len(said) == 1 and why in said[0], said


# ---- what a program once took, and should not have


class _Each(Optimizer):
    """Its step asks `rate` for each parameter."""

    twice = 1.0

    def __init__(self, params: Any, **more: Any) -> None:
        super().__init__(params, {"lr": 0.1, "k": 0, **more})

    def rate(self, group: Any, p: Any) -> Any:
        return group["lr"]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["k"] += 1
            for p in group["params"]:
                p.sub_(p.grad * self.rate(group, p))


class ZeroesGradients(_Each):
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad * group["lr"])
        self.zero_grad()


class CallsItself(_Each):
    def rate(self, group: Any, p: Any) -> Any:
        if group["k"] < 0:
            self.step()
        return group["lr"]


class ChangesAList(_Each):
    def __init__(self, params: Any) -> None:
        super().__init__(params, rates=[0.1, 0.2])

    def rate(self, group: Any, p: Any) -> Any:
        group["rates"][0] *= 0.9
        return group["rates"][0]


class AppendsToAList(_Each):
    def __init__(self, params: Any) -> None:
        super().__init__(params, hist=[1])

    def rate(self, group: Any, p: Any) -> Any:
        group["hist"].append(1)
        return group["lr"] / len(group["hist"])


class Swallows(_Each):
    def rate(self, group: Any, p: Any) -> Any:
        try:
            return 1 + int(group["lr"] * 20)
        except Exception:
            return 0.25


class IsClose(_Each):
    def rate(self, group: Any, p: Any) -> Any:
        return 0.1 if math.isclose(group["lr"], 0.1, rel_tol=0.02) else 0.2


class CopiesSigns(_Each):
    def rate(self, group: Any, p: Any) -> Any:
        return 0.1 if math.copysign(1.0, group["lr"] - 0.09) > 0 else 0.3


class ImportsSqrt(_Each):
    def rate(self, group: Any, p: Any) -> Any:
        return 0.1 if sqrt(group["lr"]) > 0.3 else 0.2


class AsksForAnInt(_Each):
    def rate(self, group: Any, p: Any) -> Any:
        return 0.1 if isinstance(group["k"], int) else 0.3


class IntPower(_Each):
    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.param_groups[0]["k"] = 10**6 + 3

    def rate(self, group: Any, p: Any) -> Any:
        return 1e11 / group["k"] ** 3 - 1e11 / (group["k"] + 1) ** 3 + group["lr"]


class NarrowTensor(_Each):
    def rate(self, group: Any, p: Any) -> Any:
        return torch.tensor([group["lr"]], dtype=torch.bfloat16)


class WholeTensor(_Each):
    def rate(self, group: Any, p: Any) -> Any:
        return torch.tensor([group["k"]], dtype=torch.int64) * 0.01


class AsTensor(_Each):
    def rate(self, group: Any, p: Any) -> Any:
        return torch.as_tensor([group["lr"], 1.0], dtype=torch.bfloat16)[0]


class NewTensor(_Each):
    def rate(self, group: Any, p: Any) -> Any:
        return p.bfloat16().new_tensor(group["lr"])


class Aranges(_Each):
    def rate(self, group: Any, p: Any) -> Any:
        return torch.arange(0.0, group["lr"] * 10, 0.1).sum() * 0.01


class OwnState(_Each):
    def rate(self, group: Any, p: Any) -> Any:
        return group["lr"] * self.state.get("scale", 1.0)


class HasHooks(_Each):
    def rate(self, group: Any, p: Any) -> Any:
        if group["k"] < 3:
            p.register_post_accumulate_grad_hook(_halves)
        return group["lr"]


class SetsAttributes(_Each):
    def rate(self, group: Any, p: Any) -> Any:
        p.__setattr__("seen", 1)
        return group["lr"] * p.__getattribute__("seen")


class ReadsAFile(_Each):
    def rate(self, group: Any, p: Any) -> Any:
        return torch.from_file(_FILE, size=1)


class OwnNameOfATensors(_Each):
    requires_grad = True

    def rate(self, group: Any, p: Any) -> Any:
        return 0.1 if p.requires_grad else 0.2


class NumpysRates(_Each):
    def __init__(self, params: Any) -> None:
        super().__init__(params, by=numpy.float64(0.3))

    def rate(self, group: Any, p: Any) -> Any:
        return group["lr"] * group["by"]


class Writes(_Each):
    def rate(self, group: Any, p: Any) -> Any:
        return 0.1 if f"{p.grad.sum()}" > "tensor(0" else 0.2


class LooksForNone(_Each):
    def __init__(self, params: Any) -> None:
        super().__init__(params, foreach=None)

    def rate(self, group: Any, p: Any) -> Any:
        return 0.1 if group["foreach"] is None else 0.2


class CallsTorchs(_Each):
    def rate(self, group: Any, p: Any) -> Any:
        torch_sgd([p], [p.grad], [None], weight_decay=0.0, momentum=0.0, lr=group["lr"],
                  dampening=0.0, nesterov=False, maximize=False)  # fmt: skip
        return group["lr"]


class Unsqueezes(_Each):
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad.unsqueeze_(0)[0] * group["lr"])


class OtherInts(_Each):
    """Each step has another int that is no number of a program's."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, seen=0, kept=(0,))

    def rate(self, group: Any, p: Any) -> Any:
        group["kept"] = (group["kept"][0] + 1,)
        return group["lr"]


class TakesNoClosure(_Each):
    def step(self) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.data.sub_(p.grad * group["lr"])


class TakesMore(_Each):
    def step(self, closure: Any = None, big: bool = False) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.data.sub_(p.grad * (0.3 if big is None else 0.2 if big else 0.1))


def _halves(p: Tensor) -> None:
    if p.grad is not None:
        p.grad.mul_(0.5)


def _lists_scale(optimizer: Any, step: int) -> None:
    optimizer.state["scale"] = 1.0 / step


def _made_of(first: Any, second: Any) -> Any:
    """Two functions of one module, whose cells have one name."""

    class Made(_Each):
        def rate(self, group: Any, p: Any) -> Any:
            return group["lr"] * first() + second()

    return Made


def _cell(value: float) -> Any:
    holder = [value]
    weight = holder[0]

    def read() -> float:
        return weight

    def write(other: float) -> None:
        nonlocal weight
        weight = other

    return read, write


_FILE = ""


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (ZeroesGradients, "zero_grad"), (CallsItself, ".step"), (Swallows, "catches errors"),
        (ChangesAList, "changes values"), (AppendsToAList, "changes values"),
        (IsClose, "math.isclose"), (CopiesSigns, "math.copysign"), (ImportsSqrt, "sqrt"),
        (AsksForAnInt, "isinstance"), (IntPower, "to a power"), (NarrowTensor, "gives tensor"),
        (WholeTensor, "gives tensor"), (AsTensor, "gives as_tensor"),
        (NewTensor, "gives new_tensor"), (Aranges, "gives arange"),
        (HasHooks, "register_post_accumulate_grad_hook"), (SetsAttributes, "__setattr__"),
        (ReadsAFile, "torch.from_file"), (OwnNameOfATensors, "requires_grad"),
        (NumpysRates, "float64"), (Writes, "FORMAT_"),
        (CallsTorchs, "foreach is None"), (Unsqueezes, "in place"), (OtherInts, "changes values"),
        (TakesNoClosure, "its arguments"), (TakesMore, "its arguments"),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)  # fmt: skip
def test_what_was_once_taken(
    kind: Any,
    why: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    file = tmp_path / "rate"
    monkeypatch.setattr("test_foreign_optimizers._FILE", str(file))
    pair = None
    with caplog.at_level(logging.WARNING, "gravure"):
        for step in range(8):
            file.write_bytes(struct.pack("f", 0.1 / (step + 1)))
            pair = pair or Pair(kind)
            pair.step()
    said = [r.getMessage() for r in caplog.records if "as it is" in r.getMessage()]
    assert len(said) == 1 and why in said[0], said


def test_that_foreach_is_none_is_seen() -> None:
    pair = Pair(LooksForNone)
    pair.step(4)
    pair.captured(2)


class FlipsLater(_Each):
    """A bool that has the name of a number that is counted, elsewhere."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, on=False)

    def rate(self, group: Any, p: Any) -> Any:
        if not self.state[p]:
            self.state[p]["on"] = 0
        self.state[p]["on"] += 1
        if group["k"] >= 6:
            group["on"] = True
        return group["lr"] if group["on"] else 0.2


class Swaps(_Each):
    def rate(self, group: Any, p: Any) -> Any:
        if not self.state[p]:
            self.state[p].update(a=torch.zeros_like(p), b=torch.ones_like(p))
        state = self.state[p]
        state["a"].add_(p.grad)
        state["a"], state["b"] = state["b"], state["a"]
        return group["lr"] * state["a"].mean()


class StartsAgain(_Each):
    def rate(self, group: Any, p: Any) -> Any:
        if not self.state[p] or group["k"] == 6:
            self.state[p]["m"] = torch.zeros_like(p)
        return group["lr"] * self.state[p]["m"].add_(1.0).mean()


class Aliases(_Each):
    """State that lies in its parameter's memory, and in other state."""

    def rate(self, group: Any, p: Any) -> Any:
        state = self.state[p]
        if not state:
            state.update(own=p.data, both=torch.zeros(2, p.numel()))
            state["first"] = state["both"][0]
        state["both"][0].add_(p.grad.flatten())
        state["both"][1].add_(state["first"].mul_(0.9))
        state["own"].mul_(0.99)
        return group["lr"] * state["both"].mean()


class Scales(_Each):
    """Gradients, in place."""

    def rate(self, group: Any, p: Any) -> Any:
        p.grad.mul_(0.5).add_(p, alpha=0.01)
        return group["lr"]


class Multiplies(_Each):
    """Products, and tensors of no dtype and device."""

    def rate(self, group: Any, p: Any) -> Any:
        square = p.grad.reshape(p.shape[0], -1)
        product = 1.0 + 100.0 * (square @ square.T).mean()
        return group["lr"] * product * torch.full((1,), 0.7)


@pytest.mark.parametrize("kind", [FlipsLater, Swaps, StartsAgain, Aliases, Scales, Multiplies])
def test_what_is_eagers_whoever_runs_it(kind: Any) -> None:
    pair = Pair(kind)
    pair.step(12)


def _of_default_dtype(dtype: torch.dtype) -> Any:
    @contextlib.contextmanager
    def around() -> Iterator[None]:
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(torch.float32)

    return around()


@pytest.mark.parametrize(
    "around",
    [
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.autocast("cpu", torch.float16),
        lambda: _of_default_dtype(torch.float64),
    ],
)
def test_what_is_around_a_step_is_part_of_it(around: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(optimizer: Any) -> None:
        with around():
            optimizer.step()

    pair = Pair(Multiplies)
    for _ in range(2):
        pair.step(5)
        with monkeypatch.context() as patch:
            patch.setattr(pair, "call", call)
            pair.step(3)
    pair.captured(2)


def test_a_default_device_that_a_step_does_not_bear() -> None:
    ours = Multiplies([nn.Parameter(torch.ones(3, 3))])
    gravure.compile_optimizer(ours, foreign=True)
    ours.param_groups[0]["params"][0].grad = torch.ones(3, 3)
    for _ in range(4):
        ours.step()
    with torch.device("meta"), pytest.raises(RuntimeError, match="meta"):
        ours.step()


@pytest.mark.parametrize("view", [False, True])
def test_gradients_that_share_their_memory(view: bool, caplog: pytest.LogCaptureFixture) -> None:
    optimizers = [Scales([nn.Parameter(torch.ones(4, 16)) for _ in range(2)]) for _ in range(2)]
    gravure.compile_optimizer(optimizers[1], foreign=True)
    with caplog.at_level(logging.WARNING, "gravure"):
        for step in range(8):
            torch.manual_seed(step)
            grads = [torch.randn(4, 16).view(4, 16) for _ in range(2)]
            for optimizer in optimizers:
                one, other = optimizer.param_groups[0]["params"]
                one.grad, other.grad = (g.clone() for g in grads)
                if step > 2:
                    other.grad = one.grad.view(4, 16) if view else one.grad
                optimizer.step()
            one, other = ([bits(p) for p in o.param_groups[0]["params"]] for o in optimizers)
            assert one == other
    (said,) = [r.getMessage() for r in caplog.records if "as it is" in r.getMessage()]
    assert "shares its memory" in said


def test_state_that_is_no_parameters(caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair(OwnState)
    pair.step(4)
    pair.captured(1)
    with caplog.at_level(logging.WARNING, "gravure"):
        for step in range(1, 5):
            pair.each(lambda o, step=step: _lists_scale(o, step))
            for m, o in zip(pair.models, pair.optimizers, strict=True):
                o.zero_grad()
                m(torch.ones(5, 8)).square().mean().backward()
                o.step()
            assert len({str([bits(p) for p in m.parameters()]) for m in pair.models}) == 1
    assert "no parameter" in "".join(r.getMessage() for r in caplog.records)


def test_cells_of_one_name() -> None:
    (one, change), (other, change_other) = _cell(0.5), _cell(0.01)
    pair = Pair(_made_of(one, other))
    pair.step(4)
    for value in (0.25, 0.75):
        change(value)
        pair.step(2)
        change_other(value / 50)
        pair.step(2)
    pair.captured(2)


def test_numbers_that_are_not_finite() -> None:
    class Leaves(_Each):
        def rate(self, group: Any, p: Any) -> Any:
            group["best"] = -math.inf if group["k"] % 2 < 0 else math.inf
            return group["lr"]

    class Keeps(_Each):
        def __init__(self, params: Any) -> None:
            super().__init__(params, best=0.0)

        def rate(self, group: Any, p: Any) -> Any:
            group["best"] = math.inf
            group["worst"] = group["lr"] - math.inf
            return group["lr"]

    for kind in (Leaves, Keeps):
        pair = Pair(kind)
        pair.step(8)


def test_a_step_that_takes_something_else_later(monkeypatch: pytest.MonkeyPatch) -> None:
    # A scheduler would keep calling the step that the class had when it was made.
    pair = Pair(_Each, scheduled=False)
    pair.step(4)
    monkeypatch.setattr(_Each, "step", TakesNoClosure.step)
    pair.step(2)
    monkeypatch.setattr(_Each, "step", TakesMore.step)
    pair.step(2)
    monkeypatch.setattr(pair, "call", lambda o: o.step(big=True))
    pair.step(2)
    monkeypatch.setattr(pair, "call", lambda o: o.step(None, True))
    pair.step(2)


def test_a_refusal_that_the_code_catches() -> None:
    def fn(a: Tensor, lr: float) -> None:
        try:
            k = 1 + int(lr)
        except Exception:
            k = 5
        a.mul_(k)

    update = gravure.compile_update(fn)
    one, other = torch.ones(3), torch.ones(3)
    for lr in (1.0, 2.0, 3.0):
        update(one, lr)
        fn(other, lr)
        assert bits(one) == bits(other)


def test_an_update_under_autocast() -> None:
    def fn(a: Tensor, b: Tensor) -> None:
        a.mul_((b @ b).mean())

    update = gravure.compile_update(fn)
    one, other, b = torch.ones(4), torch.ones(4), torch.linspace(0, 1, 16).view(4, 4)
    for i in range(6):
        with torch.autocast("cpu", torch.bfloat16, enabled=i in (2, 5)):
            update(one, b)
            fn(other, b)
        assert bits(one) == bits(other)
    assert update.gravure_update.programs == 2  # type: ignore[attr-defined]


def test_only_where_the_caller_says_so(caplog: pytest.LogCaptureFixture) -> None:
    own = Counted([nn.Parameter(torch.ones(2))])
    with caplog.at_level(logging.WARNING, "gravure"):
        assert gravure.compile_optimizer(own) is own
        own.step()
    (said,) = [r.getMessage() for r in caplog.records if r.name == "gravure"]
    assert "not one of torch.optim's own" in said and "foreign=True" in said
    assert "step" not in vars(own)

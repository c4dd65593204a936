"""A compiled optimizer's step in which nothing but numbers is another goes straight to its
launches. Whatever else is another one is noticed in the very next step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gravure
import pytest
import torch
from host_counters import use_host_counters
from running import bits, need_library
from torch import Tensor, optim
from torch.optim import Optimizer, lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

Change = Callable[[list[Tensor], Any], Any]

SHAPES = ((3, 4), (5,), (2, 2), (1,), (7,))


class Pair:
    """Equal parameters with an optimizer as it is, and with a compiled one. The last parameter has
    no gradient."""

    def __init__(self, make: Callable[[list[Tensor]], Optimizer]) -> None:
        self.parameters: list[list[Tensor]] = []
        for _ in range(2):
            torch.manual_seed(0)
            self.parameters.append([torch.randn(s, requires_grad=True) for s in SHAPES])
        self.optimizers = [make(p) for p in self.parameters]
        gravure.compile_optimizer(self.optimizers[1])
        self.update = self.optimizers[1].step.gravure_update  # type: ignore[attr-defined]
        for parameters in self.parameters:
            for p in parameters[:-1]:
                p.grad = torch.zeros_like(p)
        self.seed = 0

    def step(self, *given: Any, draws: bool = True, **named: Any) -> bool:
        """Whether the compiled one went straight. `given`, `named`: to both steps."""
        self.seed += 1
        before = self.update.repeated_steps
        for parameters, optimizer in zip(self.parameters, self.optimizers, strict=True):
            torch.manual_seed(self.seed)
            for p in parameters:
                if p.grad is not None and draws:
                    p.grad.copy_(torch.randn_like(p))
            optimizer.step(*given, **named)
        one, other = (
            [(bits(p), sorted((k, bits(v)) for k, v in o.state.get(p, {}).items())) for p in ps]
            for ps, o in zip(self.parameters, self.optimizers, strict=True)
        )
        assert one == other
        return bool(self.update.repeated_steps > before)

    def each(self, change: Change) -> None:
        for parameters, optimizer in zip(self.parameters, self.optimizers, strict=True):
            torch.manual_seed(7)
            change(parameters, optimizer)


def adamw(p: list[Tensor], **settings: Any) -> Optimizer:
    return optim.AdamW(p, 0.02, foreach=True, **settings)


def warm(make: Callable[[list[Tensor]], Optimizer]) -> Pair:
    pair = Pair(make)
    for _ in range(8):
        pair.step()
    assert pair.step(), "it does not go straight"
    return pair


@pytest.fixture(autouse=True)
def host_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    use_host_counters(monkeypatch)


# ---- what goes straight


@pytest.mark.parametrize("way", [{"foreach": True}, {"foreach": False}], ids=str)
@pytest.mark.parametrize("kind", ["Adam", "AdamW", "RAdam", "Adamax", "SGD", "RMSprop"])
def test_steps_with_a_schedule_go_straight(kind: str, way: dict[str, bool]) -> None:
    settings: dict[str, Any] = dict(way)
    if kind == "SGD":
        settings["momentum"] = 0.9
    pair = Pair(lambda p: getattr(optim, kind)(p, 0.02, **settings))
    schedulers = [lr_scheduler.CosineAnnealingLR(o, 40) for o in pair.optimizers]
    straight = 0
    for _ in range(30):
        straight += pair.step()
        for scheduler in schedulers:
            scheduler.step()
    assert straight >= 15, pair.update.repeated_steps


def test_steps_of_trainers_go_straight() -> None:
    """Accelerate passes a None on in each step, Lightning a closure that runs the model."""
    pair = warm(adamw)
    assert pair.step(None)
    assert pair.step(closure=None)
    losses: list[int] = []
    for i in range(6):
        assert pair.step(lambda i=i: losses.append(i) or i)
    assert losses == [i for i in range(6) for _ in range(2)]
    assert pair.optimizers[1].step(lambda: 7) == 7


def test_a_closure_is_called_before_a_step_goes_straight() -> None:
    """It makes the gradients, and a number that is read behind it."""
    pair = warm(adamw)
    for i in range(4):
        todo = list(range(2))

        def closure(i: int = i, todo: list[int] = todo) -> None:
            which = todo.pop(0)
            pair.optimizers[which].param_groups[0]["lr"] = 0.1 / (i + 1)
            for p in pair.parameters[which][:-1]:
                assert p.grad is not None
                p.grad.fill_(i + 1.0)

        assert pair.step(closure)


def test_a_closure_that_adds_a_gradient_is_seen() -> None:
    pair = warm(adamw)
    todo = list(range(2))

    def closure() -> None:
        last = pair.parameters[todo.pop(0)][-1]
        last.grad = torch.ones_like(last)

    assert not pair.step(closure)


def test_more_than_a_closure_is_refused_as_in_eager() -> None:
    pair = warm(adamw)
    for given, named in (((None, None), {}), ((None,), {"closure": None}), ((), {"other": 1})):
        for optimizer in pair.optimizers:
            with pytest.raises(TypeError):
                optimizer.step(*given, **named)
    assert pair.step()


def test_steps_go_straight_when_gradients_came_to_lie_elsewhere() -> None:
    """As behind a compiled model, whose first steps run uncaptured: there are captures for both."""
    pair = warm(adamw)
    for parameters in pair.parameters:
        for p in parameters[:-1]:
            p.grad = torch.zeros_like(p)
    straight = [pair.step() for _ in range(12)]
    assert straight[-4:] == [True] * 4, straight


def test_named_parameters_go_straight() -> None:
    pair = warm(lambda p: adamw([(f"p{i}", each) for i, each in enumerate(p)]))
    pair.each(lambda _, o: o.param_groups[0]["param_names"].__setitem__(0, "other"))
    assert not pair.step()
    assert any(pair.step() for _ in range(4))


def test_a_learning_rate_and_momentum_that_change_go_straight() -> None:
    pair = warm(adamw)
    for i in range(6):
        pair.each(lambda _, o, i=i: o.param_groups[0].update(lr=0.1 / (i + 1)))
        pair.each(lambda _, o, i=i: o.param_groups[0].update(betas=(0.9 - i / 100, 0.99)))
        assert pair.step()


def test_betas_in_a_list_that_change_in_place() -> None:
    def make(p: list[Tensor]) -> Optimizer:
        optimizer = adamw(p)
        optimizer.param_groups[0]["betas"] = [0.9, 0.99]
        return optimizer

    pair = warm(make)
    for i in range(4):
        pair.each(lambda _, o, i=i: o.param_groups[0]["betas"].__setitem__(0, 0.8 + i / 50))
        assert pair.step()


def test_step_counts_that_differ_go_straight() -> None:
    pair = Pair(adamw)
    pair.step()
    pair.each(lambda p, o: o.state[p[1]]["step"].fill_(100.0))
    for _ in range(8):
        pair.step()
    assert pair.step()


def test_gradients_are_not_kept_alive() -> None:
    pair = warm(adamw)
    gradient = torch.utils.weak.WeakTensorKeyDictionary()
    gradient[pair.parameters[1][0].grad] = True
    pair.each(lambda p, _: setattr(p[0], "grad", None))
    assert len(gradient) == 0


# ---- what must be noticed


def swap_state(p: list[Tensor], o: Any) -> None:
    o.state[p[0]]["exp_avg"] = torch.randn_like(p[0])


def swap_count(p: list[Tensor], o: Any) -> None:
    o.state[p[0]]["step"] = torch.tensor(50.0)


def swap_states_data(p: list[Tensor], o: Any) -> None:
    o.state[p[0]]["exp_avg_sq"].data = torch.rand_like(p[0])


def swap_counts_data(p: list[Tensor], o: Any) -> None:
    o.state[p[0]]["step"].data = torch.tensor(50.0)


def share_counts(p: list[Tensor], o: Any) -> None:
    o.state[p[0]]["step"].data = o.state[p[1]]["step"].data


def load(p: list[Tensor], o: Any) -> None:
    loaded = copy.deepcopy(o.state_dict())
    for state in loaded["state"].values():
        state["exp_avg"].mul_(2)
        state["step"].add_(5)
    o.load_state_dict(loaded)


def drop_state(p: list[Tensor], o: Any) -> None:
    del o.state[p[1]]


def clear_state(p: list[Tensor], o: Any) -> None:
    o.state.clear()


def another_state(p: list[Tensor], o: Any) -> None:
    state = type(o.state)(dict)
    state.update({k: {n: t.clone() * 2 for n, t in v.items()} for k, v in o.state.items()})
    o.state = state


def swap_data(p: list[Tensor], _: Any) -> None:
    p[0].data = torch.randn_like(p[0])


def another_gradient(p: list[Tensor], _: Any) -> None:
    p[0].grad = torch.randn_like(p[0])


def transposed_gradient(p: list[Tensor], _: Any) -> None:
    p[0].grad = torch.randn(4, 3).t()


def negated_gradient(p: list[Tensor], _: Any) -> None:
    p[0].grad = torch._neg_view(p[0].grad)  # type: ignore[attr-defined]


def swap_gradients_data(p: list[Tensor], _: Any) -> None:
    p[0].grad.data = torch.randn_like(p[0])  # type: ignore[union-attr]


def no_gradient(p: list[Tensor], _: Any) -> None:
    p[1].grad = None


def first_gradient(p: list[Tensor], _: Any) -> None:
    p[-1].grad = torch.randn_like(p[-1])


def set_maximize(_: Any, o: Any) -> None:
    o.param_groups[0]["maximize"] = True


def set_no_decay(_: Any, o: Any) -> None:
    o.param_groups[0]["weight_decay"] = 0.0


def set_tensor(_: Any, o: Any) -> None:
    o.param_groups[0].update(foreach=False, lr=torch.tensor(0.05))


def another_group(p: list[Tensor], o: Any) -> None:
    group = {"params": [torch.randn(3, requires_grad=True)], "lr": 0.5}
    group["params"][0].grad = torch.ones(3)  # type: ignore[index]
    o.add_param_group(group)
    p.append(group["params"][0])  # type: ignore[index]


def another_dictionary(_: Any, o: Any) -> None:
    o.param_groups[0] = {**o.param_groups[0], "lr": 0.7}


def other_groups(_: Any, o: Any) -> None:
    o.param_groups = [{**o.param_groups[0], "lr": 0.7}]


def fewer_parameters(_: Any, o: Any) -> None:
    del o.param_groups[0]["params"][0]


def another_parameter(p: list[Tensor], o: Any) -> None:
    new = p[0].detach().clone().requires_grad_()
    new.grad = torch.ones_like(new)
    o.param_groups[0]["params"][0] = new
    p[0] = new


CHANGES = [
    swap_state, swap_count, swap_states_data, swap_counts_data, share_counts, load, drop_state,
    clear_state, another_state, swap_data, another_gradient, transposed_gradient, negated_gradient,
    swap_gradients_data, no_gradient, first_gradient, set_maximize, set_no_decay, set_tensor,
    another_group, another_dictionary, other_groups, fewer_parameters, another_parameter,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.__name__)
def test_the_next_step_has_eagers_bits(change: Change) -> None:
    pair = warm(adamw)
    pair.each(change)
    pair.step(draws=False)
    for _ in range(6):
        pair.step()


def test_a_sparse_gradient_is_noticed() -> None:
    pair = warm(lambda p: optim.SGD(p, 0.1))
    pair.each(lambda p, _: setattr(p[0], "grad", torch.ones(3, 4).to_sparse()))
    assert not pair.step(draws=False)


@pytest.mark.parametrize("counts", [3.0, 5.0])
def test_a_branch_on_a_step_count_is_taken(counts: float) -> None:
    """RAdam's correction begins behind its fifth step."""
    pair = warm(lambda p: optim.RAdam(p, 0.02, foreach=True))
    pair.each(lambda p, o: o.state[p[0]]["step"].fill_(counts))
    for _ in range(5):
        pair.step()


def test_hooks_and_a_replaced_step_are_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = warm(adamw)
    calls: list[str] = []
    handles: list[Any] = []
    pair.each(lambda _, o: handles.append(o.register_step_pre_hook(lambda *a: calls.append("pre"))))
    assert pair.step()
    assert calls == ["pre"] * 2
    pair.each(
        lambda _, o: handles.append(
            o.register_step_pre_hook(lambda self, *a: self.param_groups[0].update(lr=0.5))
        )
    )
    assert pair.step()
    for handle in handles:
        handle.remove()
    assert pair.step()
    found = register_optimizer_step_post_hook(lambda *a: calls.append("all"))
    try:
        pair.step()
    finally:
        found.remove()
    assert calls.count("all") == 2
    own = optim.AdamW.step

    def step(self: Any, closure: Any = None) -> Any:
        calls.append("patched")
        return own(self, closure)

    monkeypatch.setattr(optim.AdamW, "step", step)
    pair.step()
    assert calls.count("patched") == 2


def test_an_attribute_that_a_scaler_sets_is_read() -> None:
    pair = warm(lambda p: optim.SGD(p, 0.02, fused=True))
    pair.each(lambda _, o: setattr(o, "found_inf", torch.ones(())))  # it is skipped
    assert not pair.step()


def test_a_profiler_finds_the_step_by_its_name() -> None:
    pair = warm(adamw)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert pair.step()
    names = [event.key for event in profile.key_averages()]
    assert "Optimizer.step#AdamW.step" in names


@pytest.mark.parametrize("way", [{"foreach": True}, {"fused": True}], ids=str)
def test_gradients_that_move_in_each_step_are_copied(way: dict[str, bool]) -> None:
    pair = Pair(lambda p: optim.SGD(p, 0.02, momentum=0.9, **way))
    alive: list[Any] = []  # so that no two lie at one address

    def move(parameters: list[Tensor], _: Any) -> None:
        for p in parameters[:-1]:
            alive.append(p.grad)
            p.grad = torch.empty_like(p)

    def uncaptured() -> int:
        programs = [p for kind in pair.update._kinds.values() for p in kind.programs]
        return sum(program.stats()["uncaptured_steps"] for program in programs)

    for _ in range(10):
        pair.each(move)
        pair.step()
    before = uncaptured()
    for _ in range(6):
        pair.each(move)
        pair.step()
    assert uncaptured() == before

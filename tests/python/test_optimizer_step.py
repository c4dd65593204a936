"""compile_step(fn, optimizer=…): forward, backward and update as one program, in eager's bits."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from running import bits, need_library
from torch import Tensor
from training import Net, leaves, replays, state_of

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


def loss_of(model: nn.Module) -> Callable[..., Any]:
    def loss(x: Tensor) -> tuple[Tensor, Tensor]:
        y = model(x)
        return y.square().mean(), y

    return loss


Make = Callable[[Any], torch.optim.Optimizer]


class Pair:
    """A model and its optimizer as they are, and others that are compiled together."""

    def __init__(self, make: Make, **options: Any) -> None:
        self.models = [Net()]
        self.models.append(copy.deepcopy(self.models[0]))
        self.optimizers = [make(model) for model in self.models]
        self.step = gravure.compile_step(
            loss_of(self.models[1]),
            optimizer=self.optimizers[1],
            options={"poison": True} | options,
        )

    def run(self, seed: int, rows: int = 5) -> None:
        torch.manual_seed(seed)
        x = torch.randn(rows, 8)
        torch.manual_seed(seed)
        found = self.step(x)
        torch.manual_seed(seed)
        self.optimizers[0].zero_grad()
        expected = loss_of(self.models[0])(x)
        expected[0].backward()
        self.optimizers[0].step()
        self.optimizers[0].zero_grad()
        assert leaves(found) == leaves([t.detach() for t in expected])
        assert state_of(self.models[1]) == state_of(self.models[0])
        states = [
            [bits(v) for p in model.parameters() for v in optimizer.state.get(p, {}).values()]
            for model, optimizer in zip(self.models, self.optimizers, strict=True)
        ]
        assert states[0] == states[1]


def program() -> Any:
    return gravure.report().graphs[-1].programs[0]


def _two_groups(model: nn.Module) -> torch.optim.Optimizer:
    rest = [p for n, p in model.named_parameters() if not n.startswith("first")]
    groups = [{"params": model.first.parameters(), "lr": 0.01}, {"params": rest}]
    return torch.optim.AdamW(groups, 0.02, fused=True, amsgrad=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda m: torch.optim.AdamW(m.parameters(), 0.01, fused=True),
        lambda m: torch.optim.Adam(m.parameters(), torch.tensor(0.01), fused=True),
        lambda m: torch.optim.SGD(m.parameters(), 0.1),
        lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, nesterov=True, foreach=True),
        _two_groups,
    ],
    ids=["adamw", "tensor-lr", "sgd", "momentum", "groups"],
)
def test_a_step_with_its_optimizer_is_eagers(make: Make) -> None:
    pair = Pair(make)
    for i in range(7):
        pair.run(i)
    # The model draws random numbers, so the update stands apart.
    assert program().partitions["step"] == ["captured"] * 2
    assert program().host_nodes == {"unsafe-tag: gravure::before_update": 1}
    assert program().stats["replays"] >= 4  # after a first step for state, and two warm-ups


def test_an_optimizer_that_reads_on_the_host() -> None:
    pair = Pair(lambda m: torch.optim.AdamW(m.parameters(), 0.01))
    for i in range(6):
        pair.run(i)
    assert any("host-sync" in node for node in program().host_nodes)


@pytest.mark.parametrize("kind", [float, torch.tensor], ids=["number", "tensor"])
def test_learning_rates_change(kind: Callable[[float], Any]) -> None:
    pair = Pair(lambda m: torch.optim.AdamW(m.parameters(), kind(0.01), fused=True))
    schedulers = [torch.optim.lr_scheduler.StepLR(o, 4, 0.5) for o in pair.optimizers]
    for i in range(10):
        pair.run(i)
        for scheduler in schedulers:
            scheduler.step()
    # One for the first step, which makes the state; then one.
    assert len(gravure.report().graphs) == 2


def test_a_rate_that_is_another_number_each_step_compiles_nothing() -> None:
    pair = Pair(lambda m: torch.optim.SGD(m.parameters(), 0.1))
    with torch._dynamo.config.patch(recompile_limit=2):
        for i in range(6):
            pair.run(i)
            for optimizer in pair.optimizers:
                optimizer.param_groups[0]["lr"] *= 0.9


def test_a_checkpoint_is_loaded_between_steps() -> None:
    pair = Pair(lambda m: torch.optim.AdamW(m.parameters(), 0.01, fused=True))
    kept: Any = None
    for i in range(12):
        if i == 3:
            kept = copy.deepcopy([x.state_dict() for x in (pair.models[0], pair.optimizers[0])])
        if i == 7:
            for model, optimizer in zip(pair.models, pair.optimizers, strict=True):
                model.load_state_dict(copy.deepcopy(kept[0]))
                optimizer.load_state_dict(copy.deepcopy(kept[1]))
        pair.run(i)
    assert program().stats["captures"] == 2 * len(program().partitions["step"])


def _other_moment(optimizer: torch.optim.Optimizer, of: Tensor) -> None:
    optimizer.state[of]["exp_avg"] = optimizer.state[of]["exp_avg"] * 2


def _other_state(optimizer: torch.optim.Optimizer, of: Tensor) -> None:
    optimizer.state[of] = {key: value.clone() + 1 for key, value in optimizer.state[of].items()}


def _other_states(optimizer: torch.optim.Optimizer, of: Tensor) -> None:
    states = {p: {k: v * 2 for k, v in s.items()} for p, s in optimizer.state.items()}
    optimizer.state = type(optimizer.state)(dict, states)  # type: ignore[call-arg]


def _other_rate(optimizer: torch.optim.Optimizer, of: Tensor) -> None:
    optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"] * 2


@pytest.mark.parametrize("change", [_other_moment, _other_state, _other_states, _other_rate])
def test_state_that_is_replaced_is_used_from_the_next_step_on(change: Any) -> None:
    pair = Pair(lambda m: torch.optim.AdamW(m.parameters(), torch.tensor(0.01), fused=True))
    for i in range(9):
        if i in (5, 6, 8):
            for model, optimizer in zip(pair.models, pair.optimizers, strict=True):
                change(optimizer, next(p for p in model.parameters() if optimizer.state.get(p)))
        pair.run(i)


def _cleared(optimizer: torch.optim.Optimizer) -> None:
    optimizer.state.clear()


def _begun_anew(optimizer: torch.optim.Optimizer) -> None:
    optimizer.state = defaultdict(dict)


def _with_momentum(optimizer: torch.optim.Optimizer) -> None:
    """What had no state gets some."""
    for group in optimizer.param_groups:
        group["momentum"] = 0.5


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda m: torch.optim.AdamW(m.parameters(), 0.01, fused=True), _cleared),
        (lambda m: torch.optim.AdamW(m.parameters(), 0.01, fused=True), _begun_anew),
        (lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9), _cleared),
        (lambda m: torch.optim.SGD(m.parameters(), 0.1), _with_momentum),
    ],
    ids=["cleared", "another", "momentum", "momentum-later"],
)
@pytest.mark.parametrize("steps", [1, 5])
def test_missing_state_is_made_by_the_optimizer(make: Make, change: Any, steps: int) -> None:
    """Before the program with the optimizer is made, and when it has been replayed."""
    pair = Pair(make)
    for i in range(steps):
        pair.run(i)
    before = replays(gravure.report())
    for optimizer in pair.optimizers:
        change(optimizer)
    for i in range(5):
        pair.run(i)
    assert replays(gravure.report()) > before


def test_another_batch_size() -> None:
    pair = Pair(lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9))
    for i in range(10):
        pair.run(i, rows=(5, 3)[i % 2])


def test_parameters_of_other_models_are_left_alone() -> None:
    other = nn.Linear(2, 2)
    before = bits(other.weight)
    pair = Pair(lambda m: torch.optim.SGD([*m.parameters(), *other.parameters()], 0.1))
    for i in range(5):
        pair.run(i)
    assert bits(other.weight) == before


# ---- what is no part of the program


def test_what_is_no_optimizer_for_a_step() -> None:
    model = Net()
    with pytest.raises(TypeError, match="expected a torch.optim one, not a int"):
        gravure.compile_step(loss_of(model), optimizer=3)


class Counting(torch.optim.SGD):
    """Counts its steps in Python, where a program would not see it."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            for p in group["params"]:
                if p.grad is not None:
                    p.data.add_(p.grad, alpha=-0.1 / group["count"])


def test_an_optimizer_that_counts_in_python() -> None:
    pair = Pair(lambda m: Counting(m.parameters(), 0.1))
    for i in range(6):
        pair.run(i)
    assert pair.optimizers[1].param_groups[0]["count"] == 6

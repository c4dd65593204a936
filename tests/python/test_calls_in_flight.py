"""A compiled graph is called again while what an earlier call saved is held: captured all the same.

Each loop runs in eager and compiled; all that it returns and all gradients agree in every bit, and
from some step on every run of a program is a replay.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import gravure
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from gravure.calls.program_maker import ProgramMaker
from running import DEVICE, bits, need_library
from torch import Tensor
from training import batch

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

STEPS, LATE = 14, 10  # from then on all are replays

# A step of a loop: from the models, and how each is called, to what is compared.
Step = Callable[[nn.ModuleDict, dict[str, Any], int], list[Tensor]]


class Net(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 32), nn.Linear(32, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.gelu(self.first(self.norm(x))))


class Images(nn.Module):
    """Rows as images: its normalization writes running statistics in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.last = nn.Linear(6, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.conv(x.unflatten(1, (1, 4, 4)))))
        return self.last(y.mean((2, 3)))


def layer_called_six_times(models: nn.ModuleDict, calls: dict[str, Any], step: int) -> list[Tensor]:
    x = batch(step)
    for _ in range(6):
        x = calls["a"](x)
    x.square().mean().backward()
    return [x]


def siamese(models: nn.ModuleDict, calls: dict[str, Any], step: int) -> list[Tensor]:
    one, two = calls["a"](batch(step)), calls["a"](batch(step + 1000))
    loss = F.mse_loss(one, two) - F.cosine_similarity(one, two).mean()
    loss.backward()
    return [one, two, loss]


def preference(models: nn.ModuleDict, calls: dict[str, Any], step: int) -> list[Tensor]:
    """A policy and a frozen reference, each for what was chosen and what was not."""
    good, bad = batch(step), batch(step + 1000)
    chosen, rejected = calls["a"](good).mean(-1), calls["a"](bad).mean(-1)
    with torch.no_grad():
        references = calls["b"](good).mean(-1), calls["b"](bad).mean(-1)
    loss = -F.logsigmoid(chosen - rejected - (references[0] - references[1])).mean()
    loss.backward()
    return [loss, *references]


def gan(models: nn.ModuleDict, calls: dict[str, Any], step: int) -> list[Tensor]:
    """The discriminator is called three times a step, twice before its backward."""
    noise = batch(step)
    fake = calls["b"](noise)
    real_score, fake_score = calls["a"](batch(step + 1000)), calls["a"](fake.detach())
    loss = F.softplus(-real_score).mean() + F.softplus(fake_score).mean()
    loss.backward()
    models["b"].zero_grad()
    for p in models["a"].parameters():
        p.requires_grad_(False)
    generated = F.softplus(-calls["a"](fake)).mean()
    generated.backward()
    for p in models["a"].parameters():
        p.requires_grad_(True)
    return [loss, generated]


def one_forward_one_backward(
    models: nn.ModuleDict, calls: dict[str, Any], step: int
) -> list[Tensor]:
    """Two stages by hand, three microbatches in flight on the first."""
    held: list[tuple[Tensor, Tensor, Tensor]] = []
    seen = []

    def forward(i: int) -> None:
        x = calls["a"](batch(10 * step + i, rows=4))
        y = x.detach().requires_grad_()
        loss = calls["b"](y).square().mean()
        held.append((x, y, loss))

    def backward() -> None:
        x, y, loss = held.pop(0)
        loss.backward()
        x.backward(y.grad)
        seen.append(loss.detach())

    for i in range(3):
        forward(i)
    for i in range(3, 6):
        backward()
        forward(i)
    while held:
        backward()
    return seen


def backwards_in_another_order(
    models: nn.ModuleDict, calls: dict[str, Any], step: int
) -> list[Tensor]:
    losses = [calls["a"](batch(10 * step + i)).square().mean() for i in range(3)]
    for i in ((1, 2, 0), (2, 1, 0), (0, 2, 1))[step % 3]:
        losses[i].backward()
    return losses


def rollout_then_updates(models: nn.ModuleDict, calls: dict[str, Any], step: int) -> list[Tensor]:
    """Eight calls without gradients, whose results are kept, then three updates."""
    x, seen, given = batch(step), [], []
    with torch.no_grad():
        for _ in range(8):
            given.append(x)
            seen.append(calls["a"](x))
            x = x + seen[-1].mean(-1, keepdim=True)
    target = torch.stack(seen).sum(0)
    losses = []
    for i in range(3):
        losses.append(F.mse_loss(calls["a"](given[i]), target))
        losses[-1].backward()
        with torch.no_grad():
            for p in models["a"].parameters():
                p -= 0.01 * p.grad
                p.grad = None
    return [*seen, *losses]


def cache_of_keys_and_values(
    models: nn.ModuleDict, calls: dict[str, Any], step: int
) -> list[Tensor]:
    """What a call returns the next one is given, and all of it is kept."""
    with torch.no_grad():
        state, kept = batch(step), []
        for _ in range(5):
            state = calls["a"](state)
            kept.append(state)
            kept.append(calls["b"](torch.stack(kept).mean(0)))
    return kept


def forwards_whose_backward_never_comes(
    models: nn.ModuleDict, calls: dict[str, Any], step: int
) -> list[Tensor]:
    """An evaluation without `no_grad`."""
    return [calls["a"](batch(10 * step + i)).detach() for i in range(3)]


LOOPS: list[Step] = [
    layer_called_six_times,
    siamese,
    preference,
    gan,
    one_forward_one_backward,
    backwards_in_another_order,
    rollout_then_updates,
    cache_of_keys_and_values,
    forwards_whose_backward_never_comes,
]


def run(
    step: Step, compiled: bool, steps: int = STEPS, kind: type[nn.Module] = Net, **options: Any
) -> tuple[list[Any], list[Counted]]:
    """What each step returned, and left in gradients and parameters; what was counted by then."""
    torch.manual_seed(0)
    models = nn.ModuleDict({"a": kind(), "b": kind()}).to(DEVICE)
    options = {"poison": True, **options}
    calls: dict[str, Any] = {
        name: torch.compile(model, backend="gravure", options=dict(options)) if compiled else model
        for name, model in models.items()
    }
    optimizer = torch.optim.SGD(models.parameters(), lr=0.01)
    found, counts = [], []
    for i in range(steps):
        counts.append(counted())
        optimizer.zero_grad()
        results = step(models, calls, i)
        found.append([bits(t) for t in results])
        found.append([bits(p.grad) for p in models.parameters() if p.grad is not None])
        optimizer.step()
    counts.append(counted())
    found.append([bits(t) for t in models.state_dict().values()])
    return found, counts


class Counted(NamedTuple):
    """Programs that are there, their runs so far, and those of them that were uncaptured."""

    programs: int
    runs: int
    uncaptured: int


def counted() -> Counted:
    stats = [p.stats for graph in gravure.report().graphs for p in graph.programs]
    runs, uncaptured = sum(s["steps"] for s in stats), sum(s["uncaptured_steps"] for s in stats)
    return Counted(len(stats), runs, uncaptured)


@pytest.mark.parametrize("step", LOOPS, ids=lambda step: step.__name__)
def test_every_run_after_the_tenth_step_is_a_replay_in_eagers_bits(step: Step) -> None:
    expected, _ = run(step, compiled=False)
    found, counts = run(step, compiled=True)
    assert found == expected
    assert counts[-1].runs > counts[LATE].runs
    assert counts[-1].uncaptured == counts[LATE].uncaptured


@pytest.mark.parametrize("step", [siamese, backwards_in_another_order, gan])
def test_batch_norms_statistics_are_written_while_a_backward_is_to_come(step: Step) -> None:
    expected, _ = run(step, compiled=False, kind=Images)
    assert run(step, compiled=True, kind=Images)[0] == expected


def test_what_goes_beyond_max_in_flight_runs_uncaptured_and_right() -> None:
    expected, _ = run(backwards_in_another_order, compiled=False)
    found, counts = run(backwards_in_another_order, compiled=True, max_in_flight=2)
    assert found == expected
    assert counts[-1].uncaptured > counts[LATE].uncaptured
    assert counts[-1].programs == 2


def test_a_further_instance_is_captured_in_the_first_call_that_needs_it() -> None:
    """What the first one's warm-up recorded holds for it."""
    _, counts = run(layer_called_six_times, compiled=True, steps=3)
    # Two graphs: the first call's `x` needs no gradient. The other five calls are one graph's.
    assert counts[1] == (2, 12, 12)
    assert counts[2] == (6, 24, 14)  # the graph of one call warms up once more
    assert counts[3] == (6, 36, 14)


def test_a_backward_that_comes_late_is_captured_with_its_forward() -> None:
    """An evaluation without `no_grad` first, then training, of one graph."""

    def late(models: nn.ModuleDict, calls: dict[str, Any], step: int) -> list[Tensor]:
        y = calls["a"](batch(step))
        if step >= 6:
            y.square().mean().backward()
        return [y.detach()]

    expected, _ = run(late, compiled=False)
    found, counts = run(late, compiled=True)
    assert found == expected
    assert counts[5].uncaptured == counts[6].uncaptured  # captured alone
    assert counts[-1].uncaptured == counts[LATE].uncaptured  # with its backward
    assert counts[-1].runs == counts[LATE].runs + 2 * (STEPS - LATE)


def test_one_instance_is_as_it_was() -> None:
    expected, _ = run(siamese, compiled=False)
    found, counts = run(siamese, compiled=True, max_in_flight=1)
    assert found == expected
    assert counts[-1].programs == 1


def test_a_call_at_a_time_has_one_instance() -> None:
    def plain(models: nn.ModuleDict, calls: dict[str, Any], step: int) -> list[Tensor]:
        loss = calls["a"](batch(step)).square().mean()
        loss.backward()
        return [loss]

    assert run(plain, compiled=True)[1][-1].programs == 1


def test_a_backward_with_retain_graph_is_right_beside_another_call() -> None:
    def twice(models: nn.ModuleDict, calls: dict[str, Any], step: int) -> list[Tensor]:
        one, two = calls["a"](batch(step)).mean(), calls["a"](batch(step + 1000)).mean()
        one.backward(retain_graph=True)
        (one + two).backward()
        return [one, two]

    assert run(twice, compiled=True)[0] == run(twice, compiled=False)[0]


def test_where_no_further_instance_can_be_made_the_first_one_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make, made = ProgramMaker.make, []

    def make_two(self: ProgramMaker, *args: Any, **kwargs: Any) -> Any:
        made.append(self)
        if len(made) > 2:
            raise RuntimeError("no more than two")
        return make(self, *args, **kwargs)

    expected, _ = run(backwards_in_another_order, compiled=False)
    monkeypatch.setattr(ProgramMaker, "make", make_two)
    with caplog.at_level(logging.WARNING, "gravure"):
        found, _ = run(backwards_in_another_order, compiled=True)
        assert found == expected
        made.clear()
        model = Net().to(DEVICE)
        call = torch.compile(model, backend="gravure")
        for i in range(STEPS):
            backwards_in_another_order(nn.ModuleDict({"a": model}), {"a": call}, i)
    graph = gravure.report().graphs[-1]
    assert not graph.failure
    assert [each.instance for each in graph.programs] == [0, 1]
    assert all(each.stats["replays"] for each in graph.programs)
    assert len(made) == 3  # it is tried once
    said = "no further instance for calls in flight: no more than two"
    assert said in str(graph) and said in caplog.text


def test_a_forward_whose_backward_never_comes_leaves_the_others_right() -> None:
    def dropped(models: nn.ModuleDict, calls: dict[str, Any], step: int) -> list[Tensor]:
        one, two = calls["a"](batch(step)), calls["a"](batch(step + 1000))
        two.square().mean().backward()
        return [one, two]

    assert run(dropped, compiled=True)[0] == run(dropped, compiled=False)[0]


def test_the_report_says_how_many_instances_there_are_and_why() -> None:
    model = Net().to(DEVICE)
    call = torch.compile(model, backend="gravure")
    for i in range(4):
        backwards_in_another_order(nn.ModuleDict({"a": model}), {"a": call}, i)
    graph = gravure.report().graphs[-1]
    assert [each.instance for each in graph.programs] == [0, 1, 2]
    assert all(each.stats["replays"] for each in graph.programs)
    said = str(graph)
    assert "2 further instances, since 3 calls were in flight at once" in said
    assert "call 3 in flight:" in said


def test_instances_go_with_their_model() -> None:
    run(siamese, compiled=True)
    model = Net().to(DEVICE)
    call = torch.compile(model, backend="gravure")
    for i in range(STEPS):
        siamese(nn.ModuleDict({"a": model}), {"a": call}, i)
        model.zero_grad()
    twin = copy.deepcopy(model)
    assert gravure.drop_captures(model) == 2
    one = siamese(nn.ModuleDict({"a": model}), {"a": call}, 0)
    other = siamese(nn.ModuleDict({"a": twin}), {"a": twin}, 0)
    assert [bits(t) for t in one] == [bits(t) for t in other]


@pytest.mark.parametrize("reset", ["dynamo", "captures", "memory"])
def test_backwards_whose_programs_were_let_go_of_are_eagers(reset: str) -> None:
    """Between forwards and backwards all is reset, or given back, in two steps of many."""

    def let_go(models: nn.ModuleDict, calls: dict[str, Any], step: int) -> list[Tensor]:
        losses = [calls["a"](batch(10 * step + i)).square().mean() for i in range(3)]
        if step in (6, 7) and reset == "dynamo":
            torch._dynamo.reset()
        elif step in (6, 7) and reset == "captures":
            gravure.drop_captures()
        elif step in (6, 7):
            gravure.release_memory()
        for i in (1, 0, 2):
            losses[i].backward()
        return losses

    assert run(let_go, compiled=True)[0] == run(let_go, compiled=False)[0]


def test_reports_say_what_a_call_in_flight_holds() -> None:
    model = Net().to(DEVICE)
    call = torch.compile(model, backend="gravure")
    for i in range(5):
        siamese(nn.ModuleDict({"a": model}), {"a": call}, i)
        model.zero_grad()
    graph = gravure.report().graphs[-1]
    held = [each.stats["held_bytes"] for each in graph.programs]
    assert len(held) == 2
    assert held[0] == held[1] > 0
    assert "held until the backward" in str(graph)


def test_explain_says_what_a_call_in_flight_would_hold() -> None:
    model = Net().to(DEVICE)
    call = torch.compile(model, backend="gravure")
    before = gravure.explain(call, (batch(0),)).graphs[0]
    assert before.held_bytes > 0
    assert before.max_in_flight == 32
    assert "each call in flight has an instance, which holds" in str(before)
    with torch.no_grad():
        alone = gravure.explain(call, (batch(0),)).graphs[0]
    assert alone.max_in_flight == 0

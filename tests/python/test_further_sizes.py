"""A graph that is called with other sizes: what one size taught, and which sizes have programs."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gravure
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from gravure.calls.reports import ProgramReport
from gravure.calls.size_choice import SizeChoice, most_sizes
from running import bits, need_library
from torch import Tensor

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


class Block(nn.Module):
    """Also returns what nobody differentiates: a backward without its gradient is learnt, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x + self.second(F.gelu(self.first(self.norm(x))))
        return y, y.softmax(-1)


def batch(rows: int, seed: int) -> Tensor:
    return torch.randn(rows, 16, generator=torch.Generator().manual_seed(seed))


def programs() -> dict[tuple[int, ...], ProgramReport]:
    found = [p for graph in gravure.report().graphs for p in graph.programs]
    return {tuple(each.sizes): each for each in found}


def compiled(model: nn.Module, **options: Any) -> Callable[..., Any]:
    return torch.compile(
        model, backend="gravure", dynamic=True, options={"poison": True, **options}
    )


class Side(NamedTuple):
    """The compiled one."""

    uncaptured: list[int]  # runs of all programs, behind each batch
    made: dict[tuple[int, ...], dict[str, int]]  # what each program counted, by its sizes


def same_as_eager(
    sizes: Sequence[int],
    call_of: Callable[[nn.Module], Callable[..., Any]],
    *,
    mark: bool = False,
    grad: bool = True,
) -> Side:
    """Trains with one batch a size on both sides."""
    found: list[list[Any]] = []
    uncaptured: list[int] = []
    made: dict[tuple[int, ...], dict[str, int]] = {}
    for is_compiled in (False, True):
        torch.manual_seed(0)
        model = Block()
        call = call_of(model) if is_compiled else model
        seen: list[Any] = []
        for i, rows in enumerate(sizes):
            x = batch(rows, i)
            if mark and is_compiled:
                torch._dynamo.mark_dynamic(x, 0)
            with torch.set_grad_enabled(grad):
                y, scores = call(x)
            seen += [bits(y), bits(scores)]
            if grad:
                y.square().mean().backward()
                seen += [bits(p.grad) for p in model.parameters() if p.grad is not None]
                with torch.no_grad():
                    for p in model.parameters():
                        assert p.grad is not None
                        p -= 0.1 * p.grad
                        p.grad = None
            if is_compiled:
                made = {sizes: each.stats for sizes, each in programs().items()}
                uncaptured.append(sum(stats["uncaptured_steps"] for stats in made.values()))
        found.append(seen)
    assert found[0] == found[1]
    return Side(uncaptured, made)


@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
def test_a_further_size_is_captured_in_its_second_call(*, grad: bool) -> None:
    known = [5] * 6
    uncaptured = same_as_eager([*known, 7, 7, 7, 3, 3, 3], compiled, grad=grad).uncaptured
    runs = 2 if grad else 1  # forward and backward
    assert uncaptured[6] - uncaptured[5] == runs
    assert uncaptured[8] == uncaptured[6]
    assert uncaptured[9] - uncaptured[8] == runs
    assert uncaptured[11] == uncaptured[9]


def test_batches_of_six_lengths_are_replays_after_each_came_twice() -> None:
    lengths = (3, 4, 6, 8, 12, 16)
    order = [lengths[(7 * i + i // 6) % 6] for i in range(48)]
    assert set(order[:18]) == set(lengths)
    found = same_as_eager(order, compiled)
    assert found.uncaptured[-1] == found.uncaptured[24]
    assert sorted(found.made) == [(each,) for each in lengths]


@pytest.mark.parametrize("mark", [False, True], ids=["dynamic", "mark_dynamic"])
def test_mark_dynamic_and_dynamic_are_alike(*, mark: bool) -> None:
    def call_of(model: nn.Module) -> Callable[..., Any]:
        return torch.compile(
            model, backend="gravure", dynamic=None if mark else True, options={"poison": True}
        )

    found = same_as_eager([5, 5, 5, 5, 5, 7, 7, 7, 3, 3, 3], call_of, mark=mark)
    assert sorted(found.made) == [(3,), (5,), (7,)]
    assert [b - a for a, b in itertools.pairwise(found.uncaptured[4:])] == [2, 0, 0, 2, 0, 0]


def test_the_size_that_came_least_lately_gives_way() -> None:
    sizes = [3] * 4 + [5] * 4 + [7] * 4
    made = same_as_eager(sizes, lambda model: compiled(model, max_shapes=2)).made
    assert sorted(made) == [(), (5,), (7,)]
    assert made[(7,)]["replays"]
    assert made[()]["steps"] == 2  # the first call with 7, and its backward


def test_one_that_gave_way_comes_back() -> None:
    sizes = [3] * 4 + [5] * 4 + [7] * 4 + [3] * 4
    made = same_as_eager(sizes, lambda model: compiled(model, max_shapes=2)).made
    assert sorted(made) == [(), (3,), (7,)]
    assert made[(3,)]["replays"]


def test_the_last_batch_of_an_epoch_takes_nobodys_place() -> None:
    epochs = ([8] * 5 + [3]) * 4
    made = same_as_eager(epochs, lambda model: compiled(model, max_shapes=1)).made
    assert sorted(made) == [(), (8,)]
    assert made[(8,)]["steps"] == 2 * 5 * 4  # it was never made anew


def test_sizes_that_come_and_go_all_the_time_are_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "gravure"):
        same_as_eager(
            [rows for i in range(16) for rows in [(3, 5)[i % 2]] * 2],
            lambda model: compiled(model, max_shapes=1),
        )
    said = [r for r in caplog.records if "come and go" in r.getMessage()]
    assert len(said) == 1
    assert "max_shapes" in said[0].getMessage()


def test_a_backward_behind_its_size_gave_way_is_eagers() -> None:
    found = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        model = Block()
        call = compiled(model, max_shapes=1) if is_compiled else model
        for _ in range(4):
            call(batch(3, 0))[0].sum().backward()
        held = call(batch(3, 1))[0].square().mean()
        for i in range(4):  # 3 holds saved values: it stays
            call(batch(5, i))[0].sum().backward()
        held.backward()
        for i in range(4):
            call(batch(5, i))[0].sum().backward()
        found.append([bits(p.grad) for p in model.parameters() if p.grad is not None])
    assert found[0] == found[1]


def test_how_many_there_are_follows_from_what_they_cost() -> None:
    assert most_sizes(100) == 64
    assert most_sizes(5_000) == 20
    assert most_sizes(100_000) == 8


def test_a_size_in_flight_stays() -> None:
    choice = SizeChoice("graph")
    for sizes in ((1,), (2,), (2,)):
        choice.called(sizes, after=())
        result = choice.admit(sizes, {(1,)}, {(1,)}, 1)
    assert result == (False, None)


def test_sizes_whose_program_is_gone_are_not_remembered_for_good() -> None:
    choice, made = SizeChoice("graph"), {(0,)}
    for i in range(1, 1000):
        for sizes in ((i,), (-i,), (i,)):
            choice.called(sizes, after=())
            admitted, gone = choice.admit(sizes, made, set(), 1)
            if admitted and gone is not None:
                made = {sizes}
    assert made == {(999,)} and len(choice._last) < 1000

"""Gradients of results of which a graph computes other results: eager's, or said."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from running import DEVICES, bits, need_library
from torch import Tensor
from training import replays

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

Fn = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
W = torch.linspace(-1, 1, 16).reshape(4, 4)


def dependent(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    h = x @ w
    return h, torch.tanh(h) * h


def by_another(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    h = (x @ w).relu()
    middle = h.exp()
    return h, middle, (middle * 2).sum(0)


def apart(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return x @ w, (x * w.sum()).sin()


def detached(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    h = x @ w
    return h, (h.detach() * x).sin()


def a_view_of_it(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    h = x @ w
    return h.t(), h.sin()


def loss_of(results: tuple[Tensor, ...]) -> Tensor:
    return results[-1].square().mean()


def retained(results: tuple[Tensor, ...], x: Tensor) -> list[Any]:
    results[0].retain_grad()
    loss_of(results).backward()
    return [results[0].grad]


def retained_and_used(results: tuple[Tensor, ...], x: Tensor) -> list[Any]:
    results[0].retain_grad()
    (loss_of(results) + results[0].square().sum()).backward()
    return [results[0].grad]


def hooked(results: tuple[Tensor, ...], x: Tensor) -> list[Any]:
    seen: list[Any] = []
    results[0].register_hook(seen.append)
    loss_of(results).backward()
    return seen


def scaled_by_a_hook(results: tuple[Tensor, ...], x: Tensor) -> list[Any]:
    results[0].register_hook(lambda gradient: None if gradient is None else gradient * 2)
    loss_of(results).backward()
    return []


def asked(results: tuple[Tensor, ...], x: Tensor) -> list[Any]:
    return list(torch.autograd.grad(loss_of(results), [results[0], x], allow_unused=True))


def asked_into(results: tuple[Tensor, ...], x: Tensor) -> list[Any]:
    results[0].retain_grad()
    loss_of(results).backward(inputs=[results[0]])
    return [results[0].grad]


def only_trained(results: tuple[Tensor, ...], x: Tensor) -> list[Any]:
    loss_of(results).backward()
    return []


def retained_of_the_last(results: tuple[Tensor, ...], x: Tensor) -> list[Any]:
    seen: list[Any] = []
    results[-1].retain_grad()
    results[-1].register_hook(seen.append)
    loss_of(results).backward()
    return [results[-1].grad, *seen]


def taken_back(results: tuple[Tensor, ...], x: Tensor) -> list[Any]:
    results[0].register_hook(lambda gradient: gradient * 2).remove()
    loss_of(results).backward()
    return []


Use = Callable[[tuple[Tensor, ...], Tensor], list[Any]]
MISSED: list[Use] = [retained, retained_and_used, hooked, scaled_by_a_hook, asked, asked_into]
RIGHT: list[Use] = [only_trained, retained_of_the_last, taken_back]


def run(call: Callable[..., Any], use: Use, seed: int, device: str) -> list[Any]:
    torch.manual_seed(seed)
    x = torch.randn(3, 4, device=device, requires_grad=True)
    results = call(x, W.to(device))
    before = [bits(each) for each in results]
    found = use(results, x)
    return [*before, *map(bits, found), bits(x.grad)]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    told = [record.getMessage() for record in caplog.records]
    return [each for each in told if "of it in the graph" in each or "called with None" in each]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fn", [dependent, by_another], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("use", MISSED, ids=lambda use: use.__name__)
def test_law_1_a_gradient_of_a_result_that_another_is_computed_of_is_told_and_then_eagers(
    use: Use, fn: Fn, device: str, caplog: pytest.LogCaptureFixture
) -> None:
    compiled = torch.compile(fn, backend="gravure")
    for i in range(4):  # captured by then
        assert run(compiled, only_trained, i, device) == run(fn, only_trained, i, device)
    assert not warnings_of(caplog)
    with caplog.at_level(logging.WARNING, "gravure"):
        run(compiled, use, 4, device)
    (told,) = warnings_of(caplog)
    assert "result 0 (test_seen_results.py:" in told and "torch.compiler.disable" in told
    for i in range(5, 10):
        assert run(compiled, use, i, device) == run(fn, use, i, device), i
    assert len(warnings_of(caplog)) == 1
    assert "of it in the graph" in str(gravure.report())


# Of the second row nothing is computed of the result that is looked at.
SILENT = [
    *itertools.product(RIGHT, [dependent, by_another, apart]),
    *itertools.product(
        [retained, retained_and_used, asked, asked_into], [apart, detached, a_view_of_it]
    ),
]


@pytest.mark.parametrize("use, fn", SILENT, ids=lambda each: each.__name__)
def test_what_is_eagers_is_captured_without_a_word(
    use: Use, fn: Fn, caplog: pytest.LogCaptureFixture
) -> None:
    compiled = torch.compile(fn, backend="gravure")
    for i in range(6):
        assert run(compiled, use, i, "cpu") == run(fn, use, i, "cpu"), i
    assert not warnings_of(caplog) and replays(gravure.report())


def test_a_hook_that_eager_does_not_call_is_told(caplog: pytest.LogCaptureFixture) -> None:
    compiled = torch.compile(apart, backend="gravure")
    with caplog.at_level(logging.WARNING, "gravure"):
        run(compiled, hooked, 0, "cpu")
    (told,) = warnings_of(caplog)
    assert "a hook on result 0 (test_seen_results.py:" in told
    for i in range(1, 5):
        assert run(compiled, hooked, i, "cpu") == run(apart, hooked, i, "cpu"), i


def test_a_hook_that_fails_has_the_warning_ahead_of_its_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    compiled = torch.compile(dependent, backend="gravure")
    h, y = compiled(torch.randn(3, 4, requires_grad=True), W)
    h.register_hook(lambda gradient: gradient.norm())
    with caplog.at_level(logging.WARNING, "gravure"), pytest.raises(AttributeError):
        y.sum().backward()
    assert len(warnings_of(caplog)) == 1


def test_a_loss_beside_its_scores_whose_gradient_is_looked_at(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What a module keeps is a result, too."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 5)
            self.kept = torch.zeros(())

        def forward(self, x: Tensor, target: Tensor) -> Tensor:
            self.kept = torch.tanh(self.body(x))
            return F.cross_entropy(self.head(self.kept), target)

    def train(model: Net, call: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(1)
        found: list[Any] = []
        for _ in range(5):
            loss = call(torch.randn(4, 6), torch.randint(5, (4,)))
            model.kept.retain_grad()
            loss.backward()
            found.append([bits(loss), bits(model.kept.grad), bits(model.body.weight.grad)])
            model.zero_grad()
        return found

    torch.manual_seed(0)
    ours = Net()
    theirs = Net()
    theirs.load_state_dict(ours.state_dict())
    with caplog.at_level(logging.WARNING, "gravure"):
        found = train(ours, torch.compile(ours, backend="gravure"))
    assert found[1:] == train(theirs, theirs)[1:]
    assert len(warnings_of(caplog)) == 1


def test_by_aotautograds_wrapper_it_is_told_as_well(caplog: pytest.LogCaptureFixture) -> None:
    """Open sizes: the library makes no node."""
    compiled = torch.compile(dependent, backend="gravure", dynamic=True)
    with caplog.at_level(logging.WARNING, "gravure"):
        for i in range(3):
            assert run(compiled, only_trained, i, "cpu") == run(dependent, only_trained, i, "cpu")
        run(compiled, hooked, 3, "cpu")
        run(compiled, hooked, 4, "cpu")
    assert len(warnings_of(caplog)) == 1


def test_with_on_missed_it_is_an_error() -> None:
    compiled = torch.compile(dependent, backend="gravure", options={"on_missed": "raise"})
    with pytest.raises(RuntimeError, match="result 1 is computed of it in the graph"):
        run(compiled, retained, 0, "cpu")

"""Results that share memory with what is saved: a write into one is noticed as eager notices it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gravure
import pytest
import torch
from running import DEVICES, bits, need_library
from torch import Tensor

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

Results = tuple[Tensor, ...]


def saved_itself(x: Tensor, w: Tensor) -> Results:
    return (torch.sigmoid(x @ w),)


def saved_beside_a_loss(x: Tensor, w: Tensor) -> Results:
    y = torch.sigmoid(x @ w)
    return y, (y * y).sum()


def view_of_the_saved(x: Tensor, w: Tensor) -> Results:
    return (torch.sigmoid(x @ w).t(),)


def part_of_the_saved(x: Tensor, w: Tensor) -> Results:
    y = torch.sigmoid(x @ w)
    return y[:2], (y * 2).sum()


def saved_is_a_view(x: Tensor, w: Tensor) -> Results:
    y = x @ w
    return y, (y.t() @ w[:5]).sum() * y.t().exp().sum()


def saved_inputs(x: Tensor, w: Tensor) -> Results:
    return ((x * x @ w).tanh(),)


def two_that_share(x: Tensor, w: Tensor) -> Results:
    y = (x @ w).sigmoid()
    return y, y.t(), (y * y).sum()


def an_input(x: Tensor, w: Tensor) -> Results:
    return x, (x * x @ w).sum()


def one_twice(x: Tensor, w: Tensor) -> Results:
    y = torch.sigmoid(x @ w)
    return y, y


def detached(x: Tensor, w: Tensor) -> Results:
    y = torch.exp(x @ w)
    return y.detach(), (y * y).sum()


def detached_view(x: Tensor, w: Tensor) -> Results:
    y = torch.exp(x @ w)
    return y.detach().t(), (y * y).sum()


def views_alone(x: Tensor, w: Tensor) -> Results:
    y = torch.exp(x @ w)
    return y.view(-1), y.sum() * y.view(-1).sum()


def not_saved(x: Tensor, w: Tensor) -> Results:
    y = x @ w
    return y, (y * 2).sum()


FUNCTIONS = [
    *(saved_itself, saved_beside_a_loss, view_of_the_saved, part_of_the_saved, saved_is_a_view),
    *(saved_inputs, two_that_share, an_input, one_twice, detached, detached_view, views_alone),
    not_saved,
]


def plainly(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.mul_(2)


def through_detach(tensor: Tensor) -> None:
    tensor.detach().mul_(2)


def a_part(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor[:1].mul_(2)


def not_at_all(tensor: Tensor) -> None:
    pass


def outcome(
    call: Callable[..., Any],
    seed: int,
    target: Any,
    write: Callable[..., None],
    device: str = "cpu",
) -> Any:
    """Bits of the results and the gradients; "noticed" where autograd refuses the backward."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(5, 8, generator=generator).to(device).requires_grad_()
    w = torch.randn(8, 8, generator=generator).mul(0.3).to(device).requires_grad_()
    results = call(x, w)
    loss = sum((r.clone() * 1.5).sum() for r in results if r.requires_grad)
    write({"x": x, "w": w}[target] if isinstance(target, str) else results[target])
    try:
        loss.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
        return "noticed"
    found = [*results, w.grad, x.grad]
    return [bits(t) for t in found if t is not None]


def targets(function: Callable[..., Results]) -> list[Any]:
    results = function(torch.randn(5, 8), torch.randn(8, 8))
    return [i for i, each in enumerate(results) if each.dim()] + ["x", "w"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [{}, {"uncaptured": True}], ids=["captured", "uncaptured"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_a_write_is_noticed_as_in_eager(
    function: Callable[..., Results], options: dict[str, Any], device: str
) -> None:
    poison = {"poison": True} if device == "cpu" else {}
    call = torch.compile(function, backend="gravure", options=poison | options)
    noticed = 0
    # A graph's first call is AOTAutograd's own, which has views among the results count alone.
    outcome(call, 0, 0, not_at_all, device)
    # The first steps warm up; without a write in between a step is captured, then replayed.
    for step, write in enumerate([plainly, plainly, plainly, through_detach, a_part]):
        for target in targets(function):
            expected = outcome(function, step, target, write, device)
            found = outcome(call, step, target, write, device)
            noticed += expected == "noticed"
            assert (found == "noticed") == (expected == "noticed"), f"{target}, step {step}"
            clean = [outcome(f, step, target, not_at_all, device) for f in (call, function)]
            if function not in (two_that_share, an_input):  # AOTAutograd adds in another order
                assert found == expected, f"{target}, step {step}"
                assert clean[0] == clean[1], f"{target}, step {step}"
    assert noticed or function is not_saved
    stats = gravure.report().graphs[-1].programs[0].stats
    assert (stats["replays"] > 0) == (not options)


def test_a_write_that_autograd_cannot_see_reaches_no_replay() -> None:
    """As laws.md says: a result is a copy of what is saved, as soon as steps are replayed."""
    call = torch.compile(saved_itself, backend="gravure", options={"poison": True})

    def by_data(tensor: Tensor) -> None:
        tensor.data.mul_(2)

    for step in range(8):
        found = outcome(call, step, 0, by_data)[1:]
        warms_up = gravure.report().graphs[-1].programs[0].stats["replays"] == 0
        write = by_data if warms_up else not_at_all
        assert found == outcome(saved_itself, step, 0, write)[1:], step
    assert not warms_up


def test_results_of_a_later_step_count_anew() -> None:
    """A result that is still held, and written, does not trouble the steps that follow."""
    call = torch.compile(saved_beside_a_loss, backend="gravure", options={"poison": True})
    held = []
    for step in range(8):
        torch.manual_seed(step)
        x, w = torch.randn(5, 8), torch.randn(8, 8).requires_grad_()
        result, loss = call(x, w)
        for former in held:
            plainly(former)
        held.append(result)
        loss.backward()
    assert gravure.report().graphs[-1].programs[0].stats["replays"] > 0

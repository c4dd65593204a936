"""What PyTorch's own tests ask of CUDA graph trees, asked of Gravure.

PyTorch states these behaviours in test/inductor/test_cudagraph_trees.py. There some end in an error
or in a graph that is skipped with a warning; here each gives eager's bits. On a machine with a GPU
every test runs on it too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from running import DEVICES, bits, need_library
from torch import Tensor
from training import compiled, leaves, replays

need_library()
pytestmark = [pytest.mark.usefixtures("fresh"), pytest.mark.parametrize("device", DEVICES)]

Make = Callable[[], tuple[Any, ...]]


def drawn(make: Make, seed: int) -> tuple[Any, ...]:
    torch.manual_seed(seed)
    return make()


def agree(
    fn: Callable[..., Any], make: Make, rounds: int = 5, ours: Callable[..., Any] | None = None
) -> list[Any]:
    """`fn` and its compiled self on equal arguments, several times: results and arguments agree.

    Each result of ours is held to the end and must keep its bits; they are returned.
    """
    ours = compiled(fn) if ours is None else ours
    held = []
    for i in range(rounds):
        given, same = drawn(make, i), drawn(make, i)
        torch.manual_seed(100 + i)
        found = ours(*given)
        torch.manual_seed(100 + i)
        expected = fn(*same)
        held.append((found, leaves(expected)))
        assert leaves(found) == leaves(expected), f"results of call {i}"
        assert leaves(given) == leaves(same), f"arguments of call {i}"
    for i, (found, expected) in enumerate(held):
        assert leaves(found) == expected, f"results of call {i}, held to the end"
    return [found for found, _ in held]


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def test_one_function_in_two_places_of_a_call(device: str) -> None:
    def cube(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x * x * x

    def fn(x: Tensor) -> Tensor:
        y = cube(x)
        return y + cube(y)

    agree(fn, lambda: (torch.rand(4, 4, device=device),))
    assert replays(gravure.report())


def test_results_are_never_overwritten_by_a_later_run(device: str) -> None:
    """Trees raise "overwritten by a subsequent run" here."""
    ours = compiled(lambda x: x * x * x)
    x = torch.rand(4, device=device)
    first, second = ours(x), ours(x)
    expected = bits(x * x * x)
    for _ in range(3):
        ours(x + 1)
    assert bits(first) == expected and bits(second) == expected


@pytest.mark.parametrize("mark", [False, True])
def test_marking_a_step_changes_nothing(device: str, mark: bool) -> None:
    def fn(x: Tensor) -> Tensor:
        return (x * x).relu()

    ours = compiled(fn)

    def step(x: Tensor) -> Tensor:
        if mark:
            torch.compiler.cudagraph_mark_step_begin()
        return ours(x)

    agree(fn, lambda: (torch.randn(4, 4, device=device, requires_grad=True),), ours=step)


def test_a_branch_on_data_goes_both_ways(device: str) -> None:
    def fn(x: Tensor) -> Tensor:
        y = x + x
        z = y + 1
        return z + 10 if y.sum() > 0 else y - 10

    signs = [0, 0, 1, 1, 1, 0, 1, 0]
    twice = iter([sign for sign in signs for _ in range(2)])
    agree(fn, lambda: (torch.full((4, 4), float(next(twice)), device=device),), len(signs))


def test_the_same_seed_draws_the_same_numbers(device: str) -> None:
    ours = compiled(lambda: torch.rand(20, device=device))
    torch.manual_seed(0)
    expected = [bits(torch.rand(20, device=device)) for _ in range(3)]
    for _ in range(3):
        torch.manual_seed(0)
        assert [bits(ours()) for _ in range(3)] == expected


def test_an_argument_is_written(device: str) -> None:
    def fn(x: Tensor) -> Tensor:
        x.add_(2)
        return x

    ours = compiled(fn)
    for i in range(4):
        x = torch.full((10,), float(i), device=device)
        found = ours(x)
        assert found is x and bits(x) == bits(torch.full((10,), i + 2.0, device=device))


def test_a_result_of_ours_is_written_by_another_program(device: str) -> None:
    def make(x: Tensor) -> Tensor:
        return x + 1

    def change(x: Tensor) -> Tensor:
        return x.add_(2)

    ours, theirs = compiled(make), compiled(change)
    for i in range(5):
        x = torch.rand(4, device=device)
        held = ours(x)
        written = theirs(held) if i < 4 else theirs(held.clone())
        assert bits(written) == bits(x + 1 + 2)
        assert bits(held) == bits(x + 1 + 2 if i < 4 else x + 1)


def test_a_buffer_is_written_and_read(device: str) -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.total = nn.Buffer(torch.ones(10))

        def forward(self, x: Tensor) -> Tensor:
            self.total.add_(x)
            return self.total + x

    module = Counter().to(device)
    same = copy.deepcopy(module)
    agree(module, lambda: (torch.rand(10, device=device),), ours=compiled(same))
    assert bits(module.total) == bits(same.total)


def test_out_of_an_operator_that_resizes_nothing(device: str) -> None:
    def fn(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        return torch.logical_xor(x, y, out=out)

    def make() -> tuple[Tensor, ...]:
        x, y = (torch.randint(0, 2, (3, 4), device=device).float() for _ in range(2))
        return x, y, torch.empty(3, 4, dtype=torch.float16, device=device)

    agree(fn, make)


def test_a_backward_that_is_never_called(device: str) -> None:
    """It keeps no later forward uncaptured, and its memory goes with the result."""

    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        first = x * x * x
        torch._dynamo.graph_break()
        return first, y * y * y

    ours = compiled(fn)
    for i in range(7):
        x, y = (torch.rand(20, 20, device=device, requires_grad=True) for _ in range(2))
        first, _ = ours(x, y)
        first.sum().backward()
        assert bits(x.grad) == bits(3 * x * x) or torch.equal(
            x.grad, torch.autograd.grad((x * x * x).sum(), x)[0]
        )
        if i == 3:
            before = replays(gravure.report())
    assert replays(gravure.report()) > before


@pytest.mark.parametrize("layout", ["expanded", "transposed", "strided"])
def test_gradients_of_any_layout_come_in(device: str, layout: str) -> None:
    def tangent() -> Tensor:
        wide = torch.rand(20, 40, device=device)
        ways = {"expanded": wide[:1, :20].expand(20, 20), "transposed": wide[:, :20].t()}
        return ways.get(layout, wide[:, ::2])

    ours = compiled(lambda x: x * x.sin())
    for i in range(6):
        torch.manual_seed(i)
        x = torch.rand(20, 20, device=device, requires_grad=True)
        given = torch.rand(20, 20, device=device) if i % 3 == 2 else tangent()
        (found,) = torch.autograd.grad(ours(x), x, given)
        (expected,) = torch.autograd.grad(x * x.sin(), x, given)
        assert bits(found) == bits(expected)


def test_arguments_aligned_and_not_in_turn(device: str) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    starts = iter([1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 2, 2])

    def make() -> tuple[Tensor, Tensor]:
        start = next(starts)
        x, y = (torch.rand(60, device=device)[start : start + 50] for _ in range(2))
        return x, y

    agree(fn, make)


def test_sparse_results(device: str) -> None:
    def fn(at: Tensor, values: Tensor) -> Tensor:
        made = torch.sparse_coo_tensor(at, values, (100, 8), check_invariants=False)
        return made.to_dense()

    def make() -> tuple[Tensor, Tensor]:
        return torch.randperm(100, device=device)[None, :9], torch.rand(9, 8, device=device)

    agree(fn, make, 3)


def test_expanded_arguments(device: str) -> None:
    def fn(x: Tensor) -> Tensor:
        return x + 4 + torch.ones(4, 512, device=device)

    agree(fn, lambda: (torch.rand(1, 512, device=device).expand(4, 512),))


def test_aliased_results_share_one_storage(device: str) -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        x = x * 20
        y = x * 10
        row = y[0]
        torch._dynamo.graph_break()
        return x, x[0], x[4:], row, y[4:]

    for found in agree(fn, lambda: (torch.rand(20, 20, device=device),), 4):
        assert len({storage(t) for t in found[:3]}) == 1
        assert storage(found[3]) == storage(found[4]) != storage(found[0])


def test_views_of_parameters_and_of_arguments(device: str) -> None:
    class Views(nn.Linear):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return self.weight.T @ x, self.weight.T, self.weight[0:4], self.weight

    module = Views(10, 10).to(device)
    ours, view = compiled(module), compiled(lambda x: x[2:])
    for _ in range(4):
        x = torch.rand(10, 10, device=device, requires_grad=True)
        found, *views = ours(x)
        assert {storage(t) for t in views} == {storage(module.weight)}
        tail = view(found)
        assert storage(tail) == storage(found) and bits(tail) == bits((module.weight.T @ x)[2:])
        module.zero_grad()
        tail.sum().backward()
        expected = torch.autograd.grad((module.weight.T @ x)[2:].sum(), [module.weight, x])
        assert bits(module.weight.grad) == bits(expected[0]) and bits(x.grad) == bits(expected[1])


def test_results_written_under_autocast_are_read_anew(device: str) -> None:
    ours = compiled(lambda x: x + x)
    for _ in range(4):
        found = ours(torch.rand(4, 4, device=device, requires_grad=True))
    other = torch.rand(4, 4, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        before = found @ other
        found.detach().zero_()
        after = found @ other
    assert not torch.equal(before, after) and not after.any()


@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_accumulate_in_place_or_not_as_autograd_says(
    device: str, create_graph: bool
) -> None:
    for _ in range(4):
        x = torch.randn(5, 5, requires_grad=True, device=device)
        y = compiled(lambda x: x * x)(x)
        tangent = torch.ones(5, 5, device=device)
        y.backward(tangent, retain_graph=True)
        gradient, once = x.grad, x.grad.clone()
        y.backward(tangent, create_graph=create_graph)
        assert bits(gradient) == bits(once if create_graph else once * 2)
        assert bits(x.grad) == bits(once * 2)


def test_nothing_is_compiled_anew_in_a_frozen_function(device: str) -> None:
    ours = compiled(lambda x: x @ x)
    frozen = torch._dynamo.run(ours)
    agree(lambda x: x @ x, lambda: (torch.rand(10, 10, device=device),), ours=ours)
    graphs = len(gravure.report().graphs)
    agree(lambda x: x @ x, lambda: (torch.rand(10, 10, device=device),), ours=frozen)
    assert len(gravure.report().graphs) == graphs


def test_empty_tensors(device: str) -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        none = torch.zeros(100, device=device)[0:0]
        return x + x + x, torch.zeros(0, device=device), none, torch.tensor([])

    agree(fn, lambda: (torch.rand(4, device=device),))
    agree(lambda x: (x + x, torch.rand(4, device=device) + 10), lambda: (torch.rand(0),))


def test_results_outlive_a_reset(device: str) -> None:
    ours = compiled(lambda x: (x + 1 + 2, x * 10))
    x = torch.rand(4, device=device)
    for _ in range(4):
        found = ours(x)
    del ours
    torch._dynamo.reset()
    assert leaves(found) == leaves((x + 1 + 2, x * 10))


def test_sizes_in_turn_are_captured_once_each(device: str) -> None:
    ours = compiled(lambda x, y: (x + 1) @ y, dynamic=False)
    for i in range(12):
        size = 20 if i % 2 else 40
        x, y = torch.rand(size, size, device=device), torch.rand(size, size, device=device)
        assert bits(ours(x, y)) == bits((x + 1) @ y)
    captures = [p.stats["captures"] for g in gravure.report().graphs[-2:] for p in g.programs]
    assert captures == [1, 1]


def test_a_parameter_that_moves_each_step(device: str) -> None:
    """Trees raise here: a parameter's address has changed."""
    module = nn.Linear(20, 20).to(device)
    ours = compiled(module)
    for _ in range(6):
        x = torch.rand(20, 20, device=device)
        expected = nn.functional.linear(x, module.weight, module.bias)
        assert bits(ours(x)) == bits(expected)
        module.weight.data = torch.rand(20, 20, device=device)


def test_sizes_are_results_of_a_dynamic_forward(device: str) -> None:
    def fn(x: Tensor) -> tuple[Tensor, int]:
        x = torch.cat([x, x])
        return torch.addmm(x, x, x).relu(), x.size(0)

    ours = compiled(fn, dynamic=True)
    for shape in [(2, 4), (3, 6), (2, 4)] * 3:
        x = torch.randn(shape, device=device, requires_grad=True)
        sides = []
        for call in (ours, fn):
            x.grad = None
            found, size = call(x)
            found.sum().backward()
            sides.append([bits(found), size, bits(x.grad)])
        assert sides[0] == sides[1]


def test_a_forward_on_results_whose_backward_waits(device: str) -> None:
    cube, scale = compiled(lambda x: x * x * x), compiled(lambda x: x * 12)
    x = torch.ones(4, 4, device=device, requires_grad=True)
    for _ in range(5):
        scale(cube(x)).sum().backward()
        assert bits(x.grad) == bits(torch.full((4, 4), 36.0, device=device))
        x.grad = None
        waiting = cube(x)
        assert bits(scale(cube(x.detach()))) == bits(12 * x.detach())
        del waiting


@pytest.mark.parametrize("fn", [lambda x: x.sum().item() * 2, lambda x: x.nonzero()])
def test_what_only_the_host_can_know(device: str, fn: Callable[[Tensor], Any]) -> None:
    with torch._dynamo.config.patch(
        capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True
    ):
        agree(fn, lambda: ((torch.rand(7, device=device) > 0.5).float(),))


def test_two_devices_in_one_function(device: str) -> None:
    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin() + 1, y.cos() + 2

    agree(fn, lambda: (torch.ones(10, device=device), torch.ones(20)))


def test_work_of_another_stream_comes_first(device: str) -> None:
    """Warm-up, capture and replay run on the caller's stream, after the work it was given."""
    if device == "cpu":
        pytest.skip("a CPU has no streams")

    def fn(x: Tensor) -> Tensor:
        for _ in range(20):
            x = x @ x
        return x

    weight = torch.rand(2048, 2048, device=device) / 2048
    ours, stream = compiled(fn), torch.cuda.Stream()
    expected = bits(fn(weight) + 1)
    with torch.cuda.stream(stream):
        for _ in range(5):
            late = weight.clone()
            for _ in range(20):
                late = late @ late  # the stream is busy while we are called
            late.copy_(weight)
            assert bits(ours(late) + 1) == expected


def test_convolutions_that_are_benchmarked(device: str) -> None:
    module = nn.Conv2d(5, 6, 3).to(device)
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False):
        module(torch.randn(2, 5, 16, 16, device=device))
        agree(
            module,
            lambda: (torch.randn(2, 5, 16, 16, device=device),),
            ours=compiled(copy.deepcopy(module)),
        )

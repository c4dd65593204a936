"""What PyTorch's tests of AOTAutograd and of Dynamo's backends ask, asked of Gravure.

Aliases and writes among arguments and results, gradients that are missing or unusual, modes that
change inside a function, hooks: each gives eager's bits, in results, arguments and gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from running import bits, need_library
from torch import Tensor
from training import compiled, leaves, replays

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

Make = Callable[[], tuple[Any, ...]]


def inputs(count: int = 1, shape: tuple[int, ...] = (4, 4), grad: bool = True) -> Make:
    return lambda: tuple(torch.randn(shape, requires_grad=grad) for _ in range(count))


def observe(call: Callable[..., Any], make: Make, seed: int) -> list[Any]:
    """Everything a caller can see: results, how they hang together, gradients, arguments."""
    torch.manual_seed(seed)
    given = make()
    torch.manual_seed(seed)
    result = call(*given)
    tensors = [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, Tensor)]
    kinds = [(t.requires_grad, t.is_leaf, t.shape, t.stride()) for t in tensors]
    everything = [*tensors, *(t for t in given if isinstance(t, Tensor))]
    addresses = [t.untyped_storage().data_ptr() for t in everything]
    shared = [[a == b for b in addresses] for a in addresses]
    before = leaves(result)
    reached = [t for t in tensors if t.requires_grad]
    if reached:
        loss = sum((t * (i + 2)).sum() for i, t in enumerate(reached) if t.is_floating_point())
        loss.backward()
    gradients = [bits(t.grad) for t in given if isinstance(t, Tensor) and t.is_leaf]
    return [before, kinds, shared, gradients, leaves(given)]


def traced(fn: Callable[..., Any]) -> Callable[..., Any]:
    """What AOTAutograd makes of `fn` without us: it may add gradients in another order."""
    return torch.compile(fn, backend="aot_eager")


def agree(fn: Callable[..., Any], make: Make, like: Callable[..., Any] | None = None) -> None:
    ours, theirs = compiled(fn), fn if like is None else like
    for i in range(5):
        found, expected = observe(ours, make, i), observe(theirs, make, i)
        names = ["results", "kinds of results", "shared storage", "gradients", "arguments"]
        for name, ours_is, theirs_is in zip(names, found, expected, strict=True):
            assert ours_is == theirs_is, f"{name} of call {i}"
    assert replays(gravure.report())


def test_results_that_are_arguments() -> None:
    agree(lambda x, y: (x, (x + y).sin().cos(), y, x), inputs(2))


def test_the_same_result_twice() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sin()
        return y, y

    agree(fn, inputs())


def test_views_of_an_intermediate() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        y = x.sin()
        return y.view(-1), y.t(), y[1:], (y * 2)[0]

    agree(fn, inputs())


def test_views_of_an_argument() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x.view(-1), x.t()[1:], x.unsqueeze(0).expand(3, 4, 4), x.cos()

    agree(fn, inputs(), traced(fn))


def test_a_view_without_its_base() -> None:
    agree(lambda x: (x * 3)[1:3, ::2], inputs())


def test_one_tensor_as_two_arguments() -> None:
    def make() -> tuple[Tensor, Tensor]:
        x = torch.randn(4, 4, requires_grad=True)
        return x, x

    agree(lambda x, y: x * 2 + y.sin(), make)


def test_one_written_tensor_as_two_arguments() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return x + y

    def make() -> tuple[Tensor, Tensor]:
        x = torch.randn(4, 4)
        return x, x

    agree(fn, make)


def test_two_arguments_that_share_memory_and_are_written() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        y.add_(1)
        return x.sum() + y

    def make() -> tuple[Tensor, Tensor]:
        base = torch.randn(6, 4)
        return base[:4], base[2:]

    agree(fn, make)


def test_an_argument_that_is_no_leaf_is_written() -> None:
    def fn(x: Tensor) -> Tensor:
        y = x * 2
        y.mul_(3)
        return y.add_(x)

    agree(fn, inputs())

    def outer(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 1
        return written(y), y

    def write(y: Tensor) -> Tensor:
        y.mul_(2)
        return y.sin()

    written = compiled(write)
    for i in range(4):
        found = observe(outer, inputs(), i)
        eager = observe(lambda x: (lambda y: (write(y), y))(x * 1), inputs(), i)
        assert found == eager


def test_a_view_of_an_argument_is_written() -> None:
    def fn(x: Tensor) -> Tensor:
        x[1:3].fill_(7)
        x.t()[0].add_(1)
        return x * 2

    agree(fn, inputs(grad=False))


def test_sizes_and_strides_of_an_argument_change() -> None:
    def fn(x: Tensor) -> Tensor:
        x.t_()
        return (x + 1).sin().cos()

    agree(fn, inputs(shape=(2, 5), grad=False))


def test_results_of_many_kinds() -> None:
    def fn(x: Tensor) -> dict[str, Any]:
        top = x.topk(2)
        return {"none": None, "number": 3, "top": top, "flag": x > 0, "half": x.half(), "same": x}

    agree(fn, inputs())


def test_a_part_of_the_results_has_a_gradient() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x.sin(), x.detach() * 2, x.argmax(), x.cos().detach()

    agree(fn, inputs())


def test_arguments_without_gradients_and_unused_ones() -> None:
    def make() -> tuple[Tensor, ...]:
        frozen, unused = torch.randn(4, 4), torch.randn(3, requires_grad=True)
        return torch.randn(4, 4, requires_grad=True), frozen, unused, torch.arange(4)

    agree(lambda x, frozen, unused, at: x[at] * frozen, make)


def test_gradients_come_for_some_results_only() -> None:
    """AOTAutograd gives zeros to the backward for the others; eager has None, and so have ours."""

    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x.sin() * y, y.cos(), x * 3

    ours, theirs = compiled(fn), fn
    for i in range(8):
        torch.manual_seed(i)
        x, y = (torch.randn(4, requires_grad=True) for _ in range(2))
        chosen = [i % 3] if i % 2 else [i % 3, (i + 1) % 3]
        sides = []
        for call in (ours, theirs):
            results = call(x, y)
            loss = sum(results[at].sum() for at in chosen)
            gradients = torch.autograd.grad(loss, [x, y], allow_unused=True)
            sides.append([bits(g) for g in gradients])
        assert sides[0] == sides[1]


def test_gradients_are_switched_inside() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sin()
        with torch.no_grad():
            scale = y.abs().max()
        with torch.enable_grad():
            z = y / scale
        return z, scale

    agree(fn, inputs())


def test_the_mode_changes_between_calls() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    ours = compiled(module)
    for i in range(12):
        x = torch.randn(3, 4, requires_grad=i % 2 == 0)
        module.train(i % 3 != 0)
        contexts = [torch.enable_grad, torch.no_grad, torch.inference_mode]
        sides = []
        for call in (ours, module):
            module.zero_grad()
            torch.manual_seed(i)
            with contexts[i % 3]():
                found = call(x)
            if found.requires_grad:
                found.sum().backward()
            sides.append([bits(found), *(bits(p.grad) for p in module.parameters())])
        assert sides[0] == sides[1]


def test_parameters_are_frozen_and_thawed() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    ours = compiled(module)
    for i in range(9):
        module[0].requires_grad_(i // 3 != 1)
        x, sides = torch.randn(3, 4), []
        for call in (ours, module):
            module.zero_grad()
            call(x).sum().backward()
            sides.append([bits(p.grad) for p in module.parameters()])
        assert sides[0] == sides[1]


def test_a_function_with_its_own_gradient() -> None:
    class Clip(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clamp(-1, 1)

        @staticmethod
        def backward(ctx: Any, tangent: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return tangent * (x.abs() < 2) * 5

    agree(lambda x: Clip.apply(x.sin() * 3) * 2, inputs())


def test_hooks_on_results_and_arguments() -> None:
    seen: list[Any] = []

    def watched(call: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            x.register_hook(lambda g: seen.append(bits(g)))
            y = call(x)
            y.register_hook(lambda g: g * 2)
            return y

        return run

    def fn(x: Tensor) -> Tensor:
        return (x * x).tanh()

    ours = compiled(fn)
    for i in range(5):
        found, expected = observe(watched(ours), inputs(), i), observe(watched(fn), inputs(), i)
        assert found == expected and seen[-1] == seen[-2]


def test_tensors_that_a_function_closes_over() -> None:
    scale, table = torch.randn(4, requires_grad=True), torch.randn(9, 4)

    def fn(x: Tensor, at: Tensor) -> Tensor:
        return x * scale + table[at]

    ours = compiled(fn)
    for i in range(6):
        x, at = torch.randn(4, 4, requires_grad=True), torch.randint(9, (4,))
        if i == 3:
            table.mul_(2)
        sides = []
        for call in (ours, fn):
            scale.grad = x.grad = None
            call(x, at).sum().backward()
            sides.append([bits(scale.grad), bits(x.grad), bits(call(x, at))])
        assert sides[0] == sides[1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_dtypes(dtype: torch.dtype) -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).abs().sum(1) + x.real.sum(0).mean()

    def make() -> tuple[Tensor, Tensor]:
        return tuple(torch.randn(4, 4, dtype=dtype, requires_grad=True) for _ in range(2))

    agree(fn, make)


def test_whole_numbers_of_any_kind() -> None:
    def fn(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        return torch.bincount(x, minlength=7) // n, (x << 1) ^ n

    def make() -> tuple[Tensor, Tensor]:
        return torch.randint(7, (20,)), torch.tensor(3)

    agree(fn, make)


def test_channels_last() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    module.eval()

    def make() -> tuple[Tensor]:
        x = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)
        return (x.requires_grad_(),)

    agree(module, make)


def test_layout_of_an_argument_changes_between_calls() -> None:
    ours = compiled(lambda x: (x * 2).contiguous())
    for i in range(9):
        x = torch.randn(4, 6) if i % 3 else torch.randn(6, 4).t()
        assert bits(ours(x)) == bits((x * 2).contiguous())


def test_embedding_with_repeated_rows() -> None:
    module = nn.Embedding(10, 4, padding_idx=0)

    def fn(at: Tensor) -> Tensor:
        return module(at).sum(1)

    ours = compiled(fn)
    for _ in range(5):
        at, sides = torch.randint(4, (3, 5)), []
        for call in (ours, fn):
            module.zero_grad()
            call(at).sum().backward()
            sides.append(bits(module.weight.grad))
        assert sides[0] == sides[1]


def test_compiled_within_compiled() -> None:
    inner = compiled(lambda x: F.gelu(x) * 2)
    agree(lambda x: inner(x.sin()) + 1, inputs())


def test_errors_of_a_step_leave_the_next_one_right() -> None:
    def fn(x: Tensor, at: Tensor) -> Tensor:
        return x[at] * 2

    ours = compiled(fn)
    x = torch.randn(4, 4, requires_grad=True)
    for i in range(8):
        good, bad = torch.tensor([0, 3]), torch.tensor([0, 9])
        if i % 3 == 1:
            with pytest.raises((IndexError, RuntimeError), match="out of (range|bounds)"):
                ours(x, bad)
        assert bits(ours(x, good)) == bits(fn(x, good))


def test_vmap_and_functional_gradients() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return torch.vmap(lambda row: (row * w).sum())(x)

    agree(fn, lambda: (torch.randn(3, 4), torch.randn(4)))
    gradient = torch.func.grad(lambda w, x: (x * w).square().sum())
    agree(lambda w, x: gradient(w, x), inputs(2, grad=False))

"""Which graphs and calls are one native node, and which AOTAutograd's wrapper runs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn as nn
from native_steps import NODE, Saves, Seen, is_native, trains, warm
from running import bits, need_library
from torch import Tensor
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op
from torch.testing._internal.two_tensor import TwoTensor
from training import Mlp, compiled, rows, same_as_eager, state_of

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


class Layer(nn.Module):
    """Two layers, and what `end` makes of them, its result and the argument."""

    def __init__(self, end: Callable[..., Any]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.end = end

    def forward(self, x: Tensor) -> Any:
        y = self.second(self.first(x).tanh())
        return self.end(self, x, y)


def inner_write(module: Any, x: Tensor, y: Tensor) -> Tensor:
    z = x * module.first.weight[0]
    z.mul_(2)
    return y + z


@pytest.mark.parametrize(
    ("end", "native"),
    [
        (inner_write, True),
        (lambda _, x, y: (y, x), True),  # Dynamo returns x by itself
        (lambda _, x, y: (y, y), True),
        (lambda _, x, y: y.view(-1), True),  # nobody has what it is a view of
        (lambda _, x, y: y[1:, ::2], True),
        (lambda _, x, y: (y, x.view(-1)), False),
        (lambda _, x, y: (y.view(-1), y), False),
        (lambda m, x, y: (y * 2, m.first.weight.t()), False),
    ],
)
def test_results_and_writes(end: Callable[..., Any], native: bool) -> None:
    trains(Layer(end), native=native)


def test_a_written_argument_without_a_gradient_is_written_inside() -> None:
    class Writes(Layer):
        def forward(self, x: Tensor) -> Tensor:
            x.add_(1)
            return super().forward(x)

    trains(Writes(lambda _, x, y: y), native=True)
    x = torch.randn(5, 8)
    call = warm(Writes(lambda _, x, y: y), x)
    for _ in range(4):
        before = x._version
        call(x).sum().backward()
        assert x._version > before


def test_a_written_argument_with_a_gradient_falls_back() -> None:
    def fn(x: Tensor) -> Tensor:
        y = x * 2
        y = y + 0
        x.mul_(3)
        return x.sin() * y

    call = compiled(fn)
    for i in range(5):
        found = []
        for run in (call, fn):
            torch.manual_seed(i)
            leaf = torch.randn(5, 8, requires_grad=True)
            result = run(leaf * 1)
            assert not is_native(result)
            result.sum().backward()
            found.append((bits(result), bits(leaf.grad)))
        assert found[0] == found[1]


def test_open_sizes_fall_back() -> None:
    def batches(i: int) -> tuple[Tensor]:
        return (torch.randn(3 + i % 3, 8),)

    step = Seen()
    same_as_eager(Mlp(), batches, step, steps=9, dynamic=True)
    assert step.native == [False] * 9


def test_results_whose_size_is_read_on_the_host_fall_back() -> None:
    class Read(Mlp):
        def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
            parts = x.split(sizes.tolist())
            return torch.cat([super(Read, self).forward(p) * (i + 1) for i, p in enumerate(parts)])

    def batches(i: int) -> tuple[Tensor, Tensor]:
        return torch.randn(6, 8), torch.tensor([1 + i % 3, 2, 3 - i % 3])

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        trains(Read(), batches, native=False)


def test_a_graph_without_a_program_falls_back() -> None:
    class Sparse(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sparse.mm(torch.eye(5).to_sparse(), super().forward(x))

    trains(Sparse(), native=False)


def test_more_modules_than_programs_fall_back() -> None:
    layers = nn.ModuleList([Saves() for _ in range(3)])
    twins = copy.deepcopy(layers)
    for layer in layers:
        layer.compile(backend="gravure", options={"max_modules": 2})
    for _ in range(6):
        x = torch.randn(5, 8)
        results = [layer(x) for layer in layers]
        # Those that have a program of their own stay native, whoever was called before.
        assert [is_native(r) for r in results] == [True, True, False]
        sum(results).sum().backward()
        sum(twin(x) for twin in twins).sum().backward()
        assert state_of(layers) == state_of(twins)


def test_hooks_on_saved_tensors_fall_back() -> None:
    model, x = Mlp(), torch.randn(5, 8, requires_grad=True)
    call = warm(model, x)
    seen: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (seen.append(t), t)[1], lambda t: t):
        result = call(x)
    assert not is_native(result) and len(seen) > 3
    result.sum().backward()
    assert is_native(call(x))


def test_special_tensors_and_modes_fall_back() -> None:
    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    model, x = Mlp(), torch.randn(5, 8)
    call = warm(model, x)
    with Mode():
        result = call(x)
    assert not is_native(result)
    result.sum().backward()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(Exception, match="jvp|forward"):
            call(dual)
    assert is_native(call(x))


def test_without_gradients_nothing_is_recorded() -> None:
    model, x = Mlp(), torch.randn(5, 8)
    call = warm(model, x)
    expected = bits(call(x))
    for guard in (torch.no_grad, torch.inference_mode):
        with guard():
            for _ in range(3):
                result = call(x)
                assert result.grad_fn is None and bits(result) == expected
    assert is_native(call(x))


def test_code_of_inductors_in_a_backward_is_not_traced_by_dynamo() -> None:
    model = Mlp()
    nodes = []

    def step(x: Tensor) -> Tensor:
        loss = model(x).square().sum()
        nodes.append(loss.grad_fn.name())
        loss.backward()
        return loss.detach()

    outer = torch.compile(step, backend="gravure", options={"codegen": "inductor"})
    frames = []
    for _ in range(6):
        outer(torch.randn(5, 8))
        frames.append(torch._dynamo.utils.counters["frames"]["total"])
    assert len(set(frames[1:])) == 1
    assert NODE in nodes


class Kept(torch.autograd.Function):
    """Keeps its argument on its context, where nobody looks after its version."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.kept = x
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.kept.cos()


def test_values_on_a_context_fall_back() -> None:
    trains(Layer(lambda m, x, y: Kept.apply(y) + Kept.apply(m.first.bias)), native=False)


@pytest.fixture
def told() -> Iterator[list[float]]:
    """What an operator with an effect, `native_node_test::tell`, was called with."""
    values: list[float] = []
    with torch.library._scoped_library("native_node_test", "FRAGMENT") as library:
        library.define("tell(Tensor x) -> Tensor")
        library.impl("tell", lambda x: values.append(x.sum().item()) or x.clone(), "CPU")
        library.impl("tell", lambda x: torch.empty_like(x), "Meta")
        operator = torch.ops.native_node_test.tell.default
        handle = _register_effectful_op(operator, _EffectType.ORDERED)
        yield values
        handle.destroy()


def test_operators_with_effects_fall_back(told: list[float]) -> None:
    def tell(_: Any, x: Tensor, y: Tensor) -> Tensor:
        return y + torch.ops.native_node_test.tell(x.detach())

    trains(Layer(tell), native=False)
    assert len(told) == 14 and told[0::2] == told[1::2]


def test_subclasses_fall_back() -> None:
    model = Mlp()
    twin = copy.deepcopy(model)
    call = compiled(model)
    for i in range(6):
        (x,) = rows(i)
        results = [each(TwoTensor(x, x * 2)) for each in (call, twin)]
        assert not is_native(results[0])
        for result in results:
            result.sum().backward()
        found, expected = (
            [bits(r.a), bits(r.b), *(bits(p.grad.a) for p in each.parameters())]
            for r, each in zip(results, (model, twin), strict=True)
        )
        assert found == expected
        for each in (model, twin):
            each.zero_grad()


def test_transforms_of_functions_fall_back() -> None:
    model, x = Mlp(), torch.randn(3, 5, 8)
    call = warm(model, x[0])
    expected = [torch.vmap(model)(x), torch.func.grad(lambda x: model(x).sum())(x[0])]
    found = [torch.vmap(call)(x), torch.func.grad(lambda x: call(x).sum())(x[0])]
    assert list(map(bits, found)) == list(map(bits, expected))


def test_inference_tensors_fail_as_they_do_without_the_library() -> None:
    with torch.inference_mode():
        x = torch.randn(5, 8)
    errors = []
    for backend in ("aot_eager", "gravure"):
        torch._dynamo.reset()
        call = torch.compile(Mlp(), backend=backend)
        for i in range(4):
            call(*rows(i)).sum().backward()
        try:
            call(x).sum().backward()
            errors.append("")
        except RuntimeError as error:
            errors.append(str(error))
    assert errors[0] == errors[1]

"""What a forward computes for its backward passes autograd as one tensor, and nobody can tell."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import gravure
import numpy as np
import pytest
import torch
import torch.nn as nn
from gravure.calls import program_maker
from gravure.graphs.saved_bundle import BUNDLE, bundle_saved
from running import bits, need_library
from torch import Tensor, fx
from torch._dynamo import compiled_autograd
from torch._functorch.aot_autograd import aot_function
from torch._functorch.compilers import nop
from torch._functorch.partitioners import default_partition
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils.checkpoint import checkpoint
from training import Mlp, compiled, rows, same_as_eager, state_of, train_step

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


class Deep(nn.Module):
    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(layers)])
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale
        for layer in self.layers:
            x = torch.tanh(layer(x)) * torch.sigmoid(x)
        return x


def program() -> Any:
    return gravure.report().graphs[-1].programs[0]


def test_autograd_keeps_no_tensor_more_for_a_layer_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where AOTAutograd's wrapper runs the graphs."""
    monkeypatch.setattr(program_maker, "native_call", lambda *_: None)
    kept = []
    for layers in (3, 12):
        result = compiled(Deep(layers))(*rows(0))
        assert any(saved.requires_grad for saved in result.grad_fn.saved_tensors)
        kept.append(len(result.grad_fn.saved_tensors))
    assert kept[0] == kept[1]


class Routed(nn.Module):
    """Each layer splits its rows by sizes that it reads on the host."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(layers)])

    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        for layer in self.layers:
            parts = x.split(sizes.tolist())
            x = torch.cat([torch.tanh(layer(part)) * (i + 1) for i, part in enumerate(parts)])
        return x


def test_sizes_known_only_at_run_time_are_bundled_too() -> None:
    def batch(i: int) -> tuple[Tensor, Tensor]:
        return torch.randn(6, 8), torch.tensor([1 + i % 3, 2, 3 - i % 3])

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        kept = []
        for layers in (2, 5):
            result = compiled(Routed(layers))(*batch(0))
            kept.append(len(result.grad_fn.saved_tensors))
        assert kept[0] == kept[1]
        report = same_as_eager(Routed(), batch, steps=8)
    assert report.graphs[0].programs[0].stats["uncaptured_steps"] < 8


def test_a_bundles_members_have_their_types_under_fake_tensors() -> None:
    compiled(Deep(2))(*rows(0))  # loads the library
    types = '[["float32", [null, 4], null, "cpu"], ["int64", [2, 3], [1, 2], "cpu"]]'
    with FakeTensorMode(shape_env=ShapeEnv()):
        bundle = torch.empty(1, dtype=torch.uint8)
        first, second = torch.ops.gravure.unbundle(bundle, types)
    assert isinstance(first.shape[0], torch.SymInt) and first.shape[1] == 4
    assert second.dtype == torch.int64 and second.stride() == (1, 2)


def test_what_is_saved_and_not_read_is_left_out() -> None:
    """PyTorch's partitioner leaves such values where a shard and what was gathered are saved."""

    def cut(joint: fx.GraphModule, inputs: Any, **rest: Any) -> Any:
        forward, backward = default_partition(joint, inputs, **rest)
        end = forward.graph.output_node()
        (unread,) = forward.graph.find_nodes(op="call_function", target=torch.ops.aten.neg.default)
        end.args = ((*end.args[0], unread),)
        tangent = backward.graph.find_nodes(op="placeholder")[-1]
        with backward.graph.inserting_before(tangent):
            backward.graph.placeholder("unread").meta = {"val": unread.meta["val"]}
        assert bundle_saved(forward, backward, rest["num_fwd_outputs"])
        (bundle,) = forward.graph.find_nodes(op="call_function", target=BUNDLE)
        assert unread not in bundle.args[0] and len(bundle.args[0]) == 2
        assert len(forward.graph.output_node().args[0]) == 2
        assert [n.name for n in backward.graph.find_nodes(op="placeholder")][0] == "bundle"
        return forward, backward

    def call(x: Tensor) -> Tensor:
        return (-x.tanh()).sigmoid()

    x, y = (torch.linspace(-1, 1, 9).requires_grad_() for _ in range(2))
    compiled_call = aot_function(call, nop, nop, partition_fn=cut)
    compiled_call(x).sum().backward()
    call(y).sum().backward()
    assert bits(x.grad) == bits(y.grad)


def test_steps_are_eagers() -> None:
    report = same_as_eager(Deep(), rows, steps=8)
    assert report.graphs[0].programs[0].stats["replays"] == 12


@pytest.mark.parametrize("steps", [0, 5])
@pytest.mark.parametrize("what", ["parameter", "viewed", "first viewed", "argument"])
def test_a_write_between_forward_and_backward_is_autograds_error(steps: int, what: str) -> None:
    model = Deep()
    call = compiled(model)
    for i in range(steps):
        call(*rows(i)).sum().backward()
    x = torch.randn(5, 8)
    result = call(x.requires_grad_())
    with torch.no_grad():
        written = {
            "parameter": model.scale,
            "viewed": model.layers[3].weight,
            "first viewed": model.layers[1].weight,
            "argument": x,
        }
        written[what].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
    call(x).sum().backward()


def test_a_gradient_of_a_gradient_through_parameters_alone_is_an_error() -> None:
    call = compiled(nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 4, bias=False)))
    x = torch.randn(5, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()


def test_a_graph_that_is_dropped_gives_its_memory_back() -> None:
    model = Deep()
    call = compiled(model, {"max_in_flight": 1})
    for i in range(5):
        call(*rows(i)).sum().backward()
    replays = program().stats["replays"]
    for i in range(4):
        call(*rows(i))  # dropped: nobody holds what it saved
    assert program().stats["replays"] == replays + 4
    held = call(*rows(0))
    call(*rows(1))
    assert program().stats["replays"] == replays + 5
    assert any("saved-values-held" in remark for remark in program().remarks)
    held.sum().backward()


def test_what_is_saved_dies_with_the_tensor_that_holds_it() -> None:
    call = compiled(Deep(2))
    call(*rows(0))  # loads the library
    gone = []
    array = np.zeros(4, dtype=np.float32)
    weakref.finalize(array, gone.append, True)
    value = torch.from_numpy(array)
    bundle = torch.ops.gravure.bundle([value, value + 1])
    view = bundle.view(1).detach()
    del array, value, bundle
    first, second = torch.ops.gravure.unbundle(view, "[]")
    assert first.tolist() == [0.0] * 4 and second.tolist() == [1.0] * 4
    del first, second
    assert not gone
    del view
    assert gone == [True]


def test_a_copy_of_a_bundle_is_an_error_that_says_so() -> None:
    compiled(Deep(2))(*rows(0))
    bundle = torch.ops.gravure.bundle([torch.ones(2)])
    with pytest.raises(RuntimeError, match="hook on saved tensors.*copied it"):
        torch.ops.gravure.unbundle(bundle.clone(), "[]")


@pytest.mark.parametrize("steps", [0, 5])
def test_hooks_on_saved_tensors_see_each_of_them(steps: int) -> None:
    model = Deep()
    twin = copy.deepcopy(model)
    call = compiled(model)
    for i in range(steps):
        for each, run in ((model, call), (twin, twin)):
            each.zero_grad()
            run(*rows(i)).sum().backward()
    seen: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        seen.append(tensor)
        return tensor.clone()

    for _ in range(6):
        x = torch.randn(5, 8)
        for each, run in ((model, call), (twin, twin)):
            each.zero_grad()
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                result = run(x)
            if run is call:
                assert len(seen) > 12
            result.square().sum().backward()
            seen.clear()
        assert state_of(model) == state_of(twin)
        for each, run in ((model, call), (twin, twin)):  # and without them
            each.zero_grad()
            run(x).square().sum().backward()
        assert state_of(model) == state_of(twin)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_around_a_compiled_model(reentrant: bool) -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        optimizer.zero_grad()
        x = batch[0].requires_grad_()
        loss = checkpoint(model, x, use_reentrant=reentrant).square().mean()
        (loss + model(x).square().mean()).backward()
        optimizer.step()
        return loss.detach()

    same_as_eager(Deep(), rows, step, steps=6)


@pytest.mark.parametrize("steps", [0, 4])
def test_a_second_backward_needs_retain_graph(steps: int) -> None:
    model = Deep()
    twin = copy.deepcopy(model)
    call = compiled(model)
    for i in range(steps):
        for each, run in ((model, call), (twin, twin)):
            run(*rows(i)).sum().backward()
            each.zero_grad()
    x = torch.randn(5, 8)
    for run in (call, twin):
        loss = run(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    assert state_of(model) == state_of(twin)


@pytest.mark.parametrize("steps", [0, 4])
def test_a_gradient_of_a_gradient_is_an_error(steps: int) -> None:
    model = Deep()
    call = compiled(model)
    x = torch.randn(5, 8, requires_grad=True)
    for _ in range(steps):
        call(x).sum().backward()
    (gradient,) = torch.autograd.grad(call(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()


def test_compiled_autograd_around_the_backward_alone() -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        optimizer.zero_grad()
        loss = model(*batch).square().mean()
        with compiled_autograd._enable(torch.compile(backend="eager")):
            loss.backward()
        optimizer.step()
        return loss.detach()

    model = Mlp()
    twin = copy.deepcopy(model)
    call = compiled(model)
    optimizers = [torch.optim.SGD(m.parameters(), 0.05) for m in (model, twin)]
    for i in range(4):
        batch = rows(i)
        found = step(call, optimizers[0], batch)
        optimizers[1].zero_grad()
        expected = twin(*batch).square().mean()
        expected.backward()
        optimizers[1].step()
        assert bits(found) == bits(expected) and state_of(model) == state_of(twin)


def test_two_forwards_whose_backwards_come_in_any_order() -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        optimizer.zero_grad()
        losses = [model(batch[0] * k).square().mean() for k in (1, 2, 3)]
        for k in (1, 2, 0):
            losses[k].backward()
        optimizer.step()
        return [loss.detach() for loss in losses]

    same_as_eager(Deep(), rows, step, steps=8)


def test_what_runs_as_it_is_bundles_too() -> None:
    class Sparse(Deep):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return torch.sparse.mm(torch.eye(5).to_sparse(), y)

    same_as_eager(Sparse(), rows, train_step, steps=4)

"""Graphs of DTensors that run without AOTAutograd's wrapper do all that they do with it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo.config as dynamo_config
import torch._functorch.config as functorch_config
import torch.distributed as dist
import torch.nn as nn
from gravure.calls.graph_passes import GraphPasses
from gravure.graphs.saved_bundle import bundling
from gravure.torch_api.toolkit_call import ModuleTensors, ToolkitCall, may_call_toolkit
from running import bits, need_library
from torch import Tensor
from torch._dynamo.functional_export import dynamo_graph_capture_for_export
from torch._functorch.aot_autograd import (
    aot_compile_joint_with_descriptors,
    aot_export_joint_with_descriptors,
)
from torch._functorch.compilers import nop
from torch._functorch.partitioners import default_partition
from torch._guards import tracing
from torch.distributed.tensor import (
    DeviceMesh,
    DTensor,
    Replicate,
    Shard,
    distribute_module,
    init_device_mesh,
)

need_library()
pytestmark = [
    pytest.mark.usefixtures("fresh"),
    # torchtitan 0.2.x runs with torch 2.11 and 2.12; with later ones nothing is called directly.
    pytest.mark.skipif(not may_call_toolkit(), reason="for the torch of torchtitan 0.2.x"),
]
Call = Callable[..., Any]
STEPS = 6


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.register_buffer("scale", torch.full((8,), 0.5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            x = torch.tanh(layer(x)) * self.scale
        return x, x.detach().sum()


class Routed(Model):
    """Splits its rows by sizes that it reads on the host, which the backward needs, too."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        sizes = (x[:2, 0] > 0).sum() + 1
        for layer in self.layers:
            parts = x.split([sizes.item(), 4 - sizes.item()])
            x = torch.cat([torch.tanh(layer(part)) * (i + 1) for i, part in enumerate(parts)])
        return x, x.detach().sum()


class Graphs:
    """A model's graphs as torchtitan's toolkit makes them, by our passes or as they are."""

    make: type[nn.Module] = Model

    def __init__(self, mesh: DeviceMesh, ours: bool, plain: bool) -> None:
        torch.manual_seed(0)
        self.mesh, self.plain = mesh, plain
        self.model = self.placed(self.make())
        self.held = ModuleTensors(self.model)
        passes = GraphPasses()
        batch = (self.batch(0),)
        with dynamo_config.patch(fake_tensor_cache_enabled=False, capture_scalar_outputs=True):
            graph = dynamo_graph_capture_for_export(self.model)(*batch)
        with tracing(graph.meta["tracing_context"]), contextlib.ExitStack() as stack:
            joint = aot_export_joint_with_descriptors(stack, graph, batch, {})
            forward, backward = nop, nop
            if ours:
                forward, backward = (
                    lambda g, _: passes.forward(g),
                    lambda g, _: passes.backward(g),
                )
            compiled = aot_compile_joint_with_descriptors(
                joint,
                fw_compiler=forward,
                bw_compiler=backward,
                partition_fn=bundling(default_partition) if ours else default_partition,
            )
            self.call: Any = ToolkitCall(joint, compiled, passes.entries()) if ours else compiled

    def placed(self, module: nn.Module) -> nn.Module:
        return module if self.plain else distribute_module(module, self.mesh)

    def batch(self, step: int) -> Tensor:
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
        return x if self.plain else DTensor.from_local(x, self.mesh, [Replicate()])

    def __call__(self, step: int, **kwargs: Any) -> Any:
        return self.call(*self.held(), self.batch(step), **kwargs)

    def train(self, steps: range) -> list[bytes]:
        """Bits of all results and gradients; each step changes the parameters."""
        found = []
        for step in steps:
            result, total = self(step)
            local(result).square().sum().backward()
            found += [bits_of(result), bits_of(total)]
            found += [bits_of(p.grad) for p in self.model.parameters()]
            with torch.no_grad():
                for p in self.model.parameters():
                    p.sub_(p.grad, alpha=0.1)
                    p.grad = None
        return found


def local(value: Tensor) -> Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def bits_of(value: Tensor) -> Any:
    return bits(local(value))


@pytest.fixture(params=["DTensors", "plain"])
def pair(mesh: DeviceMesh, request: pytest.FixtureRequest) -> Iterator[tuple[Graphs, Graphs]]:
    """Ours, which runs directly by now, and the same by AOTAutograd alone."""
    # With donated buffers AOTAutograd refuses a graph that is kept.
    with functorch_config.patch(donated_buffer=False):
        ours, other = (Graphs(mesh, mine, request.param == "plain") for mine in (True, False))
        assert ours.train(range(STEPS)) == other.train(range(STEPS))
        assert is_direct(ours)
        yield ours, other


only_dtensors = pytest.mark.parametrize("pair", ["DTensors"], indirect=True)


def is_direct(graphs: Graphs) -> bool:
    return type(graphs(0)[0].grad_fn).__name__ == "ToolkitFunctionBackward"


def error_of(run: Callable[[], Any]) -> str:
    try:
        run()
    except Exception as error:  # noqa: BLE001  whatever it is
        return f"{type(error).__name__}: {error}"
    return ""


def test_steps_have_the_bits_of_aotautograd(pair: tuple[Graphs, Graphs]) -> None:
    ours, other = pair
    assert ours.train(range(STEPS, 2 * STEPS)) == other.train(range(STEPS, 2 * STEPS))


@only_dtensors
def test_gradients_are_dtensors_with_one_spec_in_all_steps(pair: tuple[Graphs, Graphs]) -> None:
    ours, other = pair
    specs = []
    for _ in range(2):
        for graphs in pair:
            graphs.model.zero_grad()
            local(graphs(0)[0]).sum().backward()
        gradients = [p.grad for p in ours.model.parameters()]
        assert [type(g) for g in gradients] == [DTensor] * 6
        assert [g._spec for g in gradients] == [p.grad._spec for p in other.model.parameters()]
        specs.append([g._spec for g in gradients])
    assert all(a is b for a, b in zip(*specs, strict=True))


def test_other_parameters_buffers_and_modules_are_seen(pair: tuple[Graphs, Graphs]) -> None:
    for change in range(4):
        for graphs in pair:
            torch.manual_seed(change)
            layers = graphs.model.layers
            if change == 0:
                layers[1].weight = nn.Parameter(graphs.batch(9).new_zeros(8, 8).add_(0.1))
            elif change == 1:
                layers[2] = graphs.placed(nn.Linear(8, 8))
            elif change == 2:
                graphs.model.scale = graphs.model.scale * 3
            else:
                layers[0].bias.data = layers[0].bias.data + 1
        assert pair[0].train(range(3)) == pair[1].train(range(3))


def test_without_gradients_it_keeps_none(pair: tuple[Graphs, Graphs]) -> None:
    ours, other = pair
    with torch.no_grad():
        found, _ = ours(1)
    assert found.grad_fn is None and not found.requires_grad
    assert bits_of(found) == bits_of(other(1)[0])


def test_results_that_need_no_gradient_have_none(pair: tuple[Graphs, Graphs]) -> None:
    for graphs in pair:
        result, total = graphs(0)
        assert result.requires_grad and not total.requires_grad


def test_a_second_backward_is_autograds_error(pair: tuple[Graphs, Graphs]) -> None:
    errors = []
    for graphs in pair:
        loss = local(graphs(0)[0]).sum()
        loss.backward()
        errors.append(error_of(loss.backward))
    assert "a second time" in errors[0] and errors[0] == errors[1]


def test_missing_arguments_are_an_error(pair: tuple[Graphs, Graphs]) -> None:
    assert all(error_of(lambda g=graphs: g.call(g.batch(0))) for graphs in pair)


def test_a_graph_that_is_kept_runs_backward_again(pair: tuple[Graphs, Graphs]) -> None:
    found = []
    for graphs in pair:
        graphs.model.zero_grad()
        loss = local(graphs(0)[0]).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        found.append([bits_of(p.grad) for p in graphs.model.parameters()])
    assert found[0] == found[1]


def test_a_gradient_of_a_gradient_is_an_error(pair: tuple[Graphs, Graphs]) -> None:
    for graphs in pair:
        loss = local(graphs(0)[0]).square().sum()

        def differentiate(loss: Tensor = loss, graphs: Graphs = graphs) -> None:
            (gradient, *_) = torch.autograd.grad(loss, graphs.held()[:1], create_graph=True)
            local(gradient).sum().backward()

        assert "double backward" in error_of(differentiate)


def test_autocast_around_it_changes_nothing(pair: tuple[Graphs, Graphs]) -> None:
    ours, other = pair
    with torch.autocast("cpu", torch.bfloat16):
        found = ours.train(range(2))
    assert found == other.train(range(2))


@only_dtensors
def test_a_gradient_in_another_placement_is_redistributed(pair: tuple[Graphs, Graphs]) -> None:
    """As AOTAutograd does it: the backward was traced for one placement."""
    found = []
    for graphs in pair:
        graphs.model.zero_grad()
        result = graphs(0)[0]
        tangent = DTensor.from_local(torch.ones(4, 8), graphs.mesh, [Shard(0)])
        result.backward(tangent)
        found.append([bits_of(p.grad) for p in graphs.model.parameters()])
    assert found[0] == found[1]


def test_numbers_that_are_read_on_the_host_reach_the_backward(mesh: DeviceMesh) -> None:
    class RoutedGraphs(Graphs):
        make = Routed

    ours, other = (RoutedGraphs(mesh, mine, plain=True) for mine in (True, False))
    assert ours.train(range(STEPS)) == other.train(range(STEPS))
    assert is_direct(ours)
    assert ours.train(range(STEPS, 2 * STEPS)) == other.train(range(STEPS, 2 * STEPS))

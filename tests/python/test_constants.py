"""What a graph computes of constants alone is computed once, and leaves no host part."""

from __future__ import annotations

import copy
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from gravure.calls.graph_passes import GraphPasses
from gravure.graphs import codegen
from gravure.graphs.constants import fold_constants
from running import DEVICES, bits, need_library
from torch import Tensor, fx
from torch._functorch.aot_autograd import aot_module_simplified
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from training import host_nodes, leaves, replays, same_as_eager, state_of

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


class WithConstants(nn.Module):
    """Tensors made of numbers: where the model is, computed with, needed by gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        slopes = torch.tensor([2.0**-i for i in range(8)], device=x.device).cumsum(0)
        y = self.linear(x) * slopes + torch.tensor(0.5, device=x.device, dtype=torch.float64)
        y = torch.where(y > 0, y, torch.tensor(-0.25)) * torch.tensor(2.0)
        pairs = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=x.device).t()  # other strides
        y = y * pairs[0, 1].expand(5, 8) + pairs.reshape(-1).repeat(2)
        return y[:, torch.tensor([1, 0, 3, 2], device=x.device)]


def rows_on(device: str) -> Any:
    return lambda _: (torch.randn(5, 8, device=device),)


@pytest.mark.parametrize("kernels", ["aten", "inductor"])
@pytest.mark.parametrize("device", DEVICES)
def test_they_are_computed_once(device: str, kernels: str, request: pytest.FixtureRequest) -> None:
    if kernels == "inductor":
        request.getfixturevalue("region_compiler")
    model = WithConstants().to(device)
    options = {"codegen": kernels, "require_capture": True}
    report = same_as_eager(model, rows_on(device), options=options)
    (program,) = report.graphs[0].programs
    assert program.partitions == {"forward": ["captured"], "backward": ["captured"]}
    assert replays(report) and not host_nodes(report)
    for name in ("lift_fresh", "cumsum", "_to_copy"):
        assert name not in program.plan


def test_nothing_of_a_constant_is_saved() -> None:
    """The backward has its own."""
    graphs: list[fx.GraphModule] = []

    def keep(graph: fx.GraphModule, _: Any) -> fx.GraphModule:
        graphs.append(graph)
        return graph

    def cut(graph: fx.GraphModule, inputs: Any) -> Any:
        return aot_module_simplified(graph, inputs, keep, partition_fn=codegen.ATEN.partition)

    model, x = WithConstants(), torch.randn(5, 8)
    call = torch.compile(lambda x: model(x).square().sum(), backend=cut)
    call(x).backward()
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    assert leaves(expected) == leaves([p.grad for p in model.parameters()])
    forward, backward = graphs
    assert len(forward.graph.find_nodes(op="get_attr")) == 7
    assert len(backward.graph.find_nodes(op="get_attr")) == 4
    assert not any(n.op == "get_attr" for n in forward.graph.output_node().args[0])
    kinds = [n.op for n in backward.graph.nodes]
    assert "placeholder" not in kinds[kinds.index("get_attr") :]


def test_what_is_folded_of_a_graph() -> None:
    aten, graph = torch.ops.aten, fx.Graph()
    constant = graph.get_attr("held")
    copied = graph.call_function(aten.lift_fresh_copy.default, (constant,))
    viewed = graph.call_function(aten.slice.Tensor, (copied, 0, 1, 3))
    made = graph.call_function(aten.lift_fresh_copy.default, (constant,))
    reduced = graph.call_function(torch.ops._c10d_functional.all_reduce.default, (made, "sum", "0"))
    doubled = graph.call_function(aten.mul.Tensor, (made, 2))
    unused = graph.call_function(aten.bernoulli.default, (doubled,))
    drawn = graph.call_function(aten.bernoulli.default, (doubled,))
    large = graph.call_function(aten.repeat.default, (doubled, [1 << 18]))
    somebodys = graph.call_function(aten.neg.default, (graph.get_attr("somebodys"),))
    used = [
        graph.call_function(aten.sin.default, (value,))
        for value in (reduced, doubled, drawn, large, somebodys)
    ]
    graph.output((viewed, *used))
    module = fx.GraphModule({"held": torch.full((4,), 0.5), "somebodys": torch.ones(4)}, graph)
    fold_constants(module)
    kept = [n.target for n in module.graph.nodes if n.op == "call_function"]
    assert kept == [
        aten.lift_fresh_copy.default, aten.slice.Tensor,
        torch.ops._c10d_functional.all_reduce.default,
        unused.target, drawn.target, large.target, somebodys.target, *[aten.sin.default] * 5,
    ]  # fmt: skip
    assert bits(module._folded1) == bits(torch.ones(4))


def test_what_is_returned_is_the_callers() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        made = torch.tensor([1.0, 2.0, 3.0])
        return x * made, made, made.double()[1:], torch.tensor(4.0).expand(2)

    call = torch.compile(fn, backend="gravure", fullgraph=True)
    x = torch.randn(3, requires_grad=True)
    for _ in range(5):
        found = call(x)
        assert leaves(found) == leaves(fn(x))
        with torch.no_grad():
            for tensor in found[1:3]:
                tensor.fill_(7)


def test_what_is_written_is_made_anew() -> None:
    def fn(x: Tensor) -> Tensor:
        total = torch.tensor([1.0, 2.0, 3.0])
        total += x
        total[0] = 5
        return total * x

    call = torch.compile(fn, backend="gravure", fullgraph=True)
    for i in range(5):
        torch.manual_seed(i)
        x = torch.randn(3, requires_grad=True)
        assert leaves(call(x)) == leaves(fn(x))


@torch.library.custom_op("test_constants::count", mutates_args={"where"})
def count(where: Tensor) -> Tensor:
    return where.add_(1).clone()


@count.register_fake
def _(where: Tensor) -> Tensor:
    return torch.empty_like(where)


def test_an_operator_of_the_users_is_no_constant() -> None:
    def fn(x: Tensor) -> Tensor:
        counted = count(torch.tensor([1.0, 2.0, 3.0]))
        return x * counted + torch.bernoulli(torch.tensor([0.5, 0.5, 0.5]))

    call = torch.compile(fn, backend="gravure", fullgraph=True)
    for i in range(5):
        x = torch.randn(3)
        found = []
        for f in (call, fn):
            torch.manual_seed(i)
            found.append([leaves(f(x)), bits(torch.get_rng_state())])
        assert found[0] == found[1]


@pytest.mark.parametrize("kernels", ["aten", "inductor"])
def test_in_a_whole_step(kernels: str, request: pytest.FixtureRequest) -> None:
    if kernels == "inductor":
        request.getfixturevalue("region_compiler")
    model = WithConstants()
    ours = copy.deepcopy(model)
    options = {"codegen": kernels, "require_capture": True, "poison": True}
    step = gravure.compile_step(lambda x: ours(x).square().mean(), options=options)
    for i in range(6):
        torch.manual_seed(i)
        x = torch.randn(5, 8)
        loss = model(x).square().mean()
        loss.backward()
        assert bits(step(x)) == bits(loss) and state_of(ours) == state_of(model)


def test_in_inference_and_in_an_export(tmp_path: Any) -> None:
    model = WithConstants()
    call = torch.compile(model, backend="gravure", options={"require_capture": True})
    x = torch.randn(5, 8)
    with torch.no_grad():
        for _ in range(5):
            assert bits(call(x)) == bits(model(x))
    assert "lift_fresh" not in gravure.report().graphs[-1].programs[0].plan
    gravure.export_step(lambda x: model(x).square().mean(), (x,), tmp_path / "step")
    text = (tmp_path / "step" / "program.gv").read_text()
    assert "folded0" in text and "lift_fresh" not in text


def test_where_an_operator_would_copy_them_to_they_lie_already() -> None:
    """Device "meta" stands for a GPU."""
    aten, graph = torch.ops.aten, fx.Graph()
    x, mask, held = graph.placeholder("x"), graph.placeholder("mask"), graph.get_attr("held")
    number = graph.call_function(aten.lift_fresh_copy.default, (held,))
    choice = graph.call_function(aten.lift_fresh_copy.default, (held,))
    chosen = graph.call_function(aten.where.self, (mask, x, choice))
    member = graph.call_function(aten.index.Tensor, (chosen, [None, number]))
    put = graph.call_function(aten.index_put.default, (chosen, [number], number))
    zero = graph.call_function(aten.zeros.default, ([],), {"device": torch.device("cpu")})
    zeros = graph.call_function(aten.zeros.default, ([4],), {"device": torch.device("cpu")})
    filled = graph.call_function(aten.index_put.default, (put, [mask], zero))
    scaled = graph.call_function(aten.mul.Tensor, (filled, number))
    graph.output((member, scaled, graph.call_function(aten.neg.default, (zeros,))))
    with FakeTensorMode():
        for node in graph.nodes:
            on_cpu = node in (held, number, choice, zero, zeros)
            size = () if on_cpu and node is not zeros else (4, 4)
            device = "cpu" if on_cpu else "meta"
            kind = torch.bool if node is mask else torch.float32
            node.meta["val"] = torch.empty(size, device=device, dtype=kind)
    module = fx.GraphModule({"held": torch.tensor(3)}, graph)
    fold_constants(module)
    found = [constants_of(node) for node in (chosen, member, put, filled, scaled)]
    # The third takes the same one twice; the fourth reads its number on the host, as the last does.
    assert [str(tensor.device) for (tensor,) in found] == ["meta", "meta", "meta", "cpu", "cpu"]
    left = {node.target for node in module.graph.nodes if node.op == "call_function"}
    assert aten.lift_fresh_copy.default not in left and aten.zeros.default in left
    assert all(node.users for node in module.graph.find_nodes(op="get_attr"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_where_that_device_is_missing_they_stay_where_they_are() -> None:
    def chosen(x: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, x, torch.tensor(0.5))

    with FakeTensorMode(allow_non_fake_inputs=True):
        x, mask = torch.empty(3, device="cuda"), torch.empty(3, device="cuda", dtype=torch.bool)
        module = make_fx(chosen)(x, mask)
    fold_constants(module)
    target = torch.ops.aten.where.self
    (where,) = module.graph.find_nodes(op="call_function", target=target)
    assert [tensor.device.type for tensor in constants_of(where)] == ["cpu"]


def constants_of(node: fx.Node) -> list[Tensor]:
    module = node.graph.owning_module
    return [getattr(module, i.target) for i in node.all_input_nodes if i.op == "get_attr"]


def test_in_a_graph_that_another_compiler_hands_over() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return (x * torch.tensor([1.0, 2.0, 3.0]).exp(),)

    x = torch.randn(3)
    call = GraphPasses().step(make_fx(fn, tracing_mode="fake")(x), ())
    for i in range(5):
        x = torch.full((3,), float(i))
        assert leaves(call(x)) == leaves(fn(x))
    assert "exp" not in gravure.report().graphs[-1].programs[0].plan

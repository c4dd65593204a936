"""Steps that read their meshes, as torchtitan's do that are compiled on one rank for all."""

from __future__ import annotations

import operator
from collections.abc import Iterator

import gravure
import pytest
import torch
import torch.distributed as dist
from gravure.calls.graph_passes import GraphPasses
from gravure.graphs import code_effects, compiled_ops
from gravure.graphs.marked_regions import RegionEffects
from gravure.graphs.mesh_values import for_meshes, meshes_read
from gravure.torch_api.compiled_code import KeptCode
from gravure.torch_api.private_names import MINOR
from running import bits, need_library
from titan_model import replays
from torch import Tensor, fx
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

need_library()
pytestmark = [
    pytest.mark.skipif(MINOR < 15, reason="graphs take meshes from torch 2.15 on"),
    pytest.mark.usefixtures("fresh"),
]


@pytest.fixture
def meshes() -> Iterator[list[DeviceMesh]]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield [init_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "b")) for _ in range(6)]
    finally:
        dist.destroy_process_group()


def step(mesh: DeviceMesh) -> fx.GraphModule:
    """x @ w summed over the submesh `b`, times one and this rank's place there; and the submesh."""
    from torch.distributed._ops import device_mesh  # noqa: F401, PLC0415  registers operators
    from torch.distributed.tensor import _collective_utils  # noqa: F401, PLC0415

    graph = fx.Graph()
    weight, given, x = (graph.placeholder(name) for name in ("weight", "mesh", "x"))
    call = graph.call_function
    submesh = call(torch.ops.device_mesh._get_submesh, (given, [1]))
    group = call(torch.ops._dtensor.mesh_get_process_group.default, (submesh, 0))
    ranks = graph.get_attr("ranks")
    coordinate = call(torch.ops.device_mesh._runtime_compute_coordinate_on_dim.default, (ranks, 1))
    factor = call(operator.add, (coordinate, 1))
    product = call(torch.ops.aten.mm.default, (x, weight))
    start = call(torch.ops._c10d_functional.all_reduce.default, (product, "sum", group))
    summed = call(torch.ops._c10d_functional.wait_tensor.default, (start,))
    result = call(torch.ops.aten.mul.Tensor, (summed, factor))
    graph.output([submesh, result, given])
    fake = torch._subclasses.FakeTensorMode()
    weight.meta["val"] = fake.from_tensor(torch.empty(3, 4))
    x.meta["val"] = fake.from_tensor(torch.empty(2, 3))
    given.meta["val"], submesh.meta["val"] = mesh, mesh["b"]
    for node in (product, start, summed, result):
        node.meta["val"] = fake.from_tensor(torch.empty(2, 4))
    root = torch.nn.Module()
    root.register_buffer("ranks", torch.zeros(1, 1, 1, dtype=torch.int))
    return fx.GraphModule(root, graph)


def test_it_is_a_program_for_its_mesh(meshes: list[DeviceMesh], passes: GraphPasses) -> None:
    module = step(meshes[0])
    weight, x = torch.randn(3, 4), torch.randn(2, 3)
    expected = x @ weight
    ours = passes.step(module, [0])
    for _ in range(5):
        submesh, found, given = ours(weight, meshes[1], x)
        assert bits(found) == bits(expected)
        assert submesh == meshes[1]["b"] and given is meshes[1]
    assert replays() > 0
    assert [graph.failure for graph in gravure.report().graphs] == [""]


def test_each_mesh_has_its_own(
    meshes: list[DeviceMesh], passes: GraphPasses, caplog: pytest.LogCaptureFixture
) -> None:
    """Up to four; for others the step runs as it is."""
    ours = passes.step(step(meshes[0]), [0])
    weight, x = torch.randn(3, 4), torch.randn(2, 3)
    for _ in range(2):
        for count, mesh in enumerate(meshes, 1):
            submesh, found, _ = ours(weight, mesh, x)
            assert submesh == mesh["b"]
            assert bits(found) == bits(x @ weight)
            assert len(gravure.report().graphs) >= min(count, 4)
    assert len(gravure.report().graphs) == 4
    assert caplog.text.count("more than 4 meshes") == 1


def test_groups_are_names_and_places_are_numbers(meshes: list[DeviceMesh]) -> None:
    module = step(meshes[0])
    read = meshes_read(module)
    assert read == [1]
    made, told = for_meshes(module, {1: meshes[1]})
    assert told == {0: meshes[1]["b"]}
    reduce = made.graph.find_nodes(
        op="call_function", target=torch.ops._c10d_functional.all_reduce.default
    )
    assert [node.args[2] for node in reduce] == [meshes[1]["b"].get_group().group_name]
    product = made.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor)
    assert [node.args[1] for node in product] == [1]


REGION = """
import torch
class Runner:
    def call(self, args):
        arg0_1, arg1_1, = args
        args.clear()
        buf0 = torch.ops._dtensor.mesh_get_process_group.default(arg1_1, 0)
        buf1 = buf0
        buf2 = torch.ops._c10d_functional.all_reduce.default(arg0_1, 'sum', buf1)
        torch.ops._c10d_functional.wait_tensor.default(buf2)
        {}
        return (buf2, )
runner = Runner(partitions=[])
call = runner.call
def get_args():
    from torch._dynamo.testing import rand_strided
    arg0_1 = rand_strided((2, 3), (3, 1), device='cpu', dtype=torch.float32)
    arg1_1 = None
    return [arg0_1, arg1_1]
"""


class Code:
    """Stands for Inductor's code of a region."""

    __module__ = "torch._inductor.standalone_compile"


def region(
    monkeypatch: pytest.MonkeyPatch, line: str = ""
) -> tuple[fx.GraphModule, list[DeviceMesh]]:
    """A graph that is one call of code which takes its mesh, as torchtitan's artifacts have it; and
    the meshes that the code was called with."""
    source = REGION.format(line)
    monkeypatch.setattr(code_effects, "kept_code", lambda _: KeptCode(source, {}))
    met: list[DeviceMesh] = []

    def target(x: Tensor, mesh: DeviceMesh) -> tuple[Tensor]:
        met.append(mesh)
        group = torch.ops._dtensor.mesh_get_process_group.default(mesh, 0)
        started = torch.ops._c10d_functional.all_reduce.default(x, "sum", group)
        return (torch.ops._c10d_functional.wait_tensor.default(started),)

    target.__wrapped__ = Code()  # type: ignore[attr-defined]
    graph = fx.Graph()
    mesh, x = graph.placeholder("mesh"), graph.placeholder("x")
    graph.output(
        [graph.call_function(operator.getitem, (graph.call_function(target, (x, mesh)), 0))]
    )
    module = fx.GraphModule(torch.nn.Module(), graph)
    regions = RegionEffects()
    assert regions.allow(module) == 1
    assert not regions.obstacle
    return module, met


def test_compiled_code_is_judged_for_its_mesh(
    monkeypatch: pytest.MonkeyPatch, meshes: list[DeviceMesh], passes: GraphPasses
) -> None:
    """Ranks compare its collectives, and each mesh has a program of its own."""
    module, met = region(monkeypatch)
    ours = passes.step(module, [])
    for mesh in meshes[:2]:
        met.clear()
        group = mesh["a"].get_group().group_name
        for _ in range(5):
            x = torch.randn(2, 3)
            (found,) = ours(mesh, x)
            assert bits(found) == bits(x)
        assert met and all(each is mesh for each in met)
        *_, code = sorted(compiled_ops._LIVE.values(), key=lambda c: int(c.name.split("#")[1]))
        assert code.operator is torch.ops.gravure.compiled_communicating.default
        assert [group] in code.arguments(1, [], [])
    assert replays() > 4
    assert [graph.failure for graph in gravure.report().graphs] == ["", ""]


def test_compiled_code_that_does_more_for_its_mesh_is_not_carried(
    monkeypatch: pytest.MonkeyPatch,
    meshes: list[DeviceMesh],
    caplog: pytest.LogCaptureFixture,
) -> None:
    module, met = region(monkeypatch, "torch.ops.aten.add_.Tensor(arg0_1, 1)")
    made = GraphPasses()
    ours = made.step(module, [])
    for _ in range(4):
        x = torch.randn(2, 3)
        assert bits(ours(meshes[0], x)[0]) == bits(x)
    assert len(met) == 4 and replays() == 0
    assert "aten.add_.Tensor in them may write" in caplog.text
    assert "runs as it is" in caplog.text
    made.shutdown()


def test_a_mesh_that_is_only_handed_on_is_not_read(meshes: list[DeviceMesh]) -> None:
    graph = fx.Graph()
    mesh = graph.placeholder("mesh")
    mesh.meta["val"] = meshes[0]
    graph.output([mesh])
    assert meshes_read(fx.GraphModule(torch.nn.Module(), graph)) is None


def test_the_device_of_a_rank_is_a_constant(
    monkeypatch: pytest.MonkeyPatch, passes: GraphPasses
) -> None:
    """As in a step that torchtitan compiles ahead, on one rank for all."""
    from torch.fx.experimental import proxy_tensor  # noqa: PLC0415

    monkeypatch.setattr(proxy_tensor, "_coor_current_accelerator", lambda: torch.device("cpu"))
    graph = fx.Graph()
    x, call = graph.placeholder("x"), graph.call_function
    device = call(torch.ops.coor.current_device.default)
    ones = call(torch.ops.aten.ones.default, ([2, 3],), {"device": device})
    result = call(torch.ops.aten.add.Tensor, (x, ones))
    graph.output([result])
    fake = torch._subclasses.FakeTensorMode()
    device.meta["val"] = torch.device("cpu")
    for node in (x, ones, result):
        node.meta["val"] = fake.from_tensor(torch.empty(2, 3))
    ours = passes.step(fx.GraphModule(torch.nn.Module(), graph), [])
    for _ in range(5):
        given = torch.randn(2, 3)
        (found,) = ours(given)
        assert bits(found) == bits(given + 1)
    assert replays() > 0
    assert [graph.failure for graph in gravure.report().graphs] == [""]

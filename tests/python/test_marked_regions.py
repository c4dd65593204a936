"""Regions that Inductor compiled before a graph comes: torchtitan 0.3's, as its passes make them.

A program carries what only computes, in the bits of the graph as it came; all else keeps it out,
with a warning that says why.
"""

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # registers operators
import torch.nn.functional as F
from gravure.calls.graph_passes import GraphPasses
from gravure.graphs import compiled_ops
from gravure.graphs.marked_regions import RegionEffects
from gravure.graphs.node_facts import is_collective
from gravure.torch_api.private_names import MINOR
from running import need_library
from titan_model import replays
from torch import Tensor, fx
from torch._inductor.standalone_compile import AOTCompiledArtifact
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.regional_inductor import regional_inductor

need_library()
MARK = {"compile_with_inductor": {"inductor_configs": {}}}


def step(x: Tensor, weight: Tensor) -> list[Tensor]:
    """A loss, a gradient, and the middle of it normed, which becomes the region."""
    y = x @ weight
    normed = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
    loss = F.silu(normed).sum()
    return [loss, x.t() @ normed]


def draws(x: Tensor, weight: Tensor) -> list[Tensor]:
    y = x @ weight
    return [y.sum(), torch.bernoulli(torch.sigmoid(y)).rsqrt()]


def draws_from_another(x: Tensor, weight: Tensor) -> list[Tensor]:
    y = x @ weight
    return [y.sum(), torch.bernoulli(torch.sigmoid(y), generator=_GENERATOR).rsqrt()]


def writes(x: Tensor, weight: Tensor) -> list[Tensor]:
    weight.rsqrt_()
    return [(x @ weight).sum(), x]


_GENERATOR = torch.Generator()


def marked(function: Callable[..., Any]) -> tuple[fx.GraphModule, tuple[Tensor, ...]]:
    args = torch.randn(8, 16), torch.rand(16, 8) + 1
    with FakeTensorMode() as mode:
        fakes = tuple(mode.from_tensor(a) for a in args)
        graph = make_fx(function)(*fakes)
    wanted = ("pow", "mean", "rsqrt", "mul", "add", "bernoulli", "rsqrt_")
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target.__name__.split(".")[0] in wanted:
            node.meta["custom"] = dict(MARK)
    return graph, args


class Code(AOTCompiledArtifact):
    """Stands for Inductor's code of a region, whose compiler takes a minute: the region itself."""

    __module__ = AOTCompiledArtifact.__module__

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module

    def __call__(self, *args: Any) -> Any:
        return self._module(*args)


def looked_at(graph: fx.GraphModule, *, whole: bool) -> RegionEffects:
    regions = RegionEffects()
    regions.look_at(graph, whole=whole)
    return regions


@pytest.fixture(autouse=True)
def inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_it(module: fx.GraphModule, *_: Any, **__: Any) -> Code:
        return Code(fx.GraphModule(module, module.graph))

    monkeypatch.setattr(torch._inductor, "standalone_compile", compile_it)


def compiled(graph: fx.GraphModule) -> fx.GraphModule:
    """As torchtitan's regional_inductor_pass calls it."""
    fake = next(iter(graph.graph.nodes)).meta["val"].fake_mode
    with torch._guards.tracing(torch._guards.TracingContext(fake)):
        graph = regional_inductor(graph)
    graph.graph.set_codegen(torch.fx.graph.CodeGen())
    graph.recompile()
    return graph


@pytest.fixture
def passes() -> Iterator[GraphPasses]:
    made = GraphPasses()
    yield made
    made.shutdown()


@pytest.mark.usefixtures("fresh")
def test_a_region_that_computes_is_carried(passes: GraphPasses) -> None:
    graph, args = marked(step)
    regions = looked_at(graph, whole=False)
    graph = compiled(graph)
    expected = [t.clone() for t in graph(*args)]
    assert regions.allow(graph) == 1 and not regions.obstacle
    passes.configure({"on_missed": "raise", "min_partition_size": 1})
    ours = passes.step(graph, [1])
    for _ in range(5):
        found = ours(*args)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert [t.stride() for t in found] == [t.stride() for t in expected]
    assert replays() > 0


@pytest.mark.usefixtures("fresh")
def test_a_region_that_writes_is_not(passes: GraphPasses, caplog: pytest.LogCaptureFixture) -> None:
    graph, args = marked(writes)
    regions = looked_at(graph, whole=False)
    assert re.search("rsqrt_.*write", regions.obstacle)
    graph = compiled(graph)
    assert regions.allow(graph) == 1
    with caplog.at_level(logging.WARNING, "gravure"):
        ours = passes.step(graph, [])
    assert "runs as it is" in caplog.text
    expected = graph_results(compiled(marked(writes)[0]), args)
    assert all(map(torch.equal, graph_results(ours, args), expected))
    assert replays() == 0


@pytest.mark.parametrize(
    ("name", "communicates"),
    [
        ("_c10d_functional.all_reduce", True),
        ("symm_mem.one_shot_all_reduce", True),
        ("_dtensor.shard_dim_alltoall", True),
        ("aten.relu", False),
    ],
)
def test_a_region_that_meets_other_ranks_is_not_carried(name: str, communicates: bool) -> None:
    graph = fx.Graph()
    target = operator.attrgetter(name)(torch.ops).default
    graph.output(graph.call_function(target, (graph.placeholder("x"),)))
    regions = looked_at(fx.GraphModule({}, graph), whole=True)
    assert ("communicates" in regions.obstacle) is communicates


FUNCTIONAL = torch.ops._c10d_functional


@pytest.fixture
def group() -> Iterator[str]:
    """The name of a group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD.group_name
    dist.destroy_process_group()


def meets(x: Tensor, weight: Tensor, group: str, *, draw: bool = False) -> list[Tensor]:
    """As FSDP does: the weight is gathered, its gradient is summed; and into memory of its own."""
    whole = FUNCTIONAL.wait_tensor(FUNCTIONAL.all_gather_into_tensor(weight, 1, group))
    y = x @ whole
    y = torch.bernoulli(torch.sigmoid(y)) if draw else y
    out = torch.empty_like(weight)
    FUNCTIONAL.wait_tensor(FUNCTIONAL.all_gather_into_tensor_out(x.t() @ y, 1, group, out=out))
    sums = FUNCTIONAL.all_reduce_coalesced([y.sum(), y.pow(2).sum()], "sum", group)
    return [*map(FUNCTIONAL.wait_tensor, sums), out]


def whole_graph(function: Callable[..., Any]) -> tuple[fx.GraphModule, tuple[Tensor, ...]]:
    """All of it marked, as by torchtitan's full_inductor_compilation_pass."""
    graph, args = marked(function)
    for node in graph.graph.nodes:
        if node.op not in ("placeholder", "output"):
            node.meta["custom"] = dict(MARK)
    return graph, args


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("draw", [False, True])
def test_a_whole_graph_that_communicates_is_carried(
    passes: GraphPasses, group: str, draw: bool
) -> None:
    graph, args = whole_graph(lambda x, weight: meets(x, weight, group, draw=draw))
    regions = looked_at(graph, whole=True)
    assert not regions.obstacle
    assert regions.collectives == [
        (group, "_c10d_functional.all_gather_into_tensor(float32[16, 8], 1)"),
        (group, "_c10d_functional.all_gather_into_tensor_out(float32[16, 8], 1, float32[16, 8])"),
        (group, "_c10d_functional.all_reduce_coalesced([float32[], float32[]], 'sum')"),
    ]
    graph = compiled(graph)
    torch.manual_seed(1)
    expected = [graph_results(graph, args) for _ in range(6)]
    assert regions.allow(graph) == 1 and not regions.obstacle
    assert any(map(is_collective, graph.graph.nodes))  # what may not be run again, or twice at once
    passes.configure({"on_missed": "raise", "min_partition_size": 1})
    ours = passes.step(graph, [1])
    torch.manual_seed(1)
    for each in expected:
        assert all(map(torch.equal, ours(*args), each))
    assert replays() > 0
    called = {code.operator for code in compiled_ops._LIVE.values()}
    packet = "compiled_communicating_random" if draw else "compiled_communicating"
    assert getattr(torch.ops.gravure, packet).default in called


@pytest.mark.usefixtures("fresh")
def test_a_file_says_what_a_whole_graph_communicates(passes: GraphPasses, group: str) -> None:
    graph, args = whole_graph(lambda x, weight: meets(x, weight, group))
    maker = looked_at(graph, whole=True)
    graph = compiled(graph)
    expected = graph_results(graph, args)
    maker.allow(graph)
    graph = from_a_file(graph)
    regions = RegionEffects()
    assert regions.allow(graph) == 1 and not regions.obstacle
    passes.configure({"on_missed": "raise", "min_partition_size": 1})
    ours = passes.step(graph, [1])
    for _ in range(5):
        assert all(map(torch.equal, ours(*args), expected))
    assert replays() > 0
    called = {code.operator for code in compiled_ops._LIVE.values()}
    assert torch.ops.gravure.compiled_communicating.default in called


def not_waited_for(x: Tensor, weight: Tensor) -> list[Tensor]:
    return [FUNCTIONAL.all_reduce(x @ weight, "sum", "0")]


def a_member_is_not(x: Tensor, weight: Tensor) -> list[Tensor]:
    first, second = FUNCTIONAL.all_reduce_coalesced([x + 1, weight + 1], "sum", "0")
    return [FUNCTIONAL.wait_tensor(first), second]


def begun_before(x: Tensor, weight: Tensor) -> list[Tensor]:
    return [FUNCTIONAL.wait_tensor(x) @ weight]


def into_an_argument(x: Tensor, weight: Tensor) -> list[Tensor]:
    return [FUNCTIONAL.wait_tensor(FUNCTIONAL.all_reduce_(weight, "sum", "0")) + x.sum()]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (not_waited_for, "all_reduce.*communicates, and is not waited for in them"),
        (a_member_is_not, "all_reduce_coalesced.*and is not waited for in them"),
        (begun_before, "wait_tensor.*waits for what began before them"),
        (into_an_argument, "all_reduce_.* in them may write"),
    ],
)
def test_what_a_whole_graph_begins_must_end_in_it(
    group: str, function: Callable[..., Any], why: str
) -> None:
    assert group == "0"
    graph, _ = whole_graph(function)
    regions = looked_at(graph, whole=True)
    assert re.search(why, regions.obstacle), regions.obstacle


def test_a_whole_graph_names_its_groups(group: str) -> None:
    """One that is asked of a mesh is another one on each rank, and its code is for all."""
    graph, _ = whole_graph(lambda x, weight: meets(x, weight, group))
    first = next(n for n in graph.graph.nodes if "all_gather" in str(n.target))
    with graph.graph.inserting_before(next(iter(graph.graph.nodes))):
        asked = graph.graph.placeholder("asked")
    first.args = (*first.args[:2], asked)
    regions = looked_at(graph, whole=True)
    assert "a group that is known only at run time" in regions.obstacle


def test_only_a_whole_graph_may_communicate(group: str) -> None:
    graph, _ = whole_graph(lambda x, weight: meets(x, weight, group))
    regions = looked_at(graph, whole=False)
    assert re.search("all_gather.*communicates", regions.obstacle)


def test_inductor_may_not_communicate_in_another_way(group: str) -> None:
    graph, _ = whole_graph(lambda x, weight: meets(x, weight, group))
    regions = RegionEffects()
    with torch._inductor.config.patch("_micro_pipeline_tp", True):
        regions.look_at(graph, whole=True)
    assert "_micro_pipeline_tp" in regions.obstacle


def test_which_of_two_regions_communicates_must_be_known(group: str) -> None:
    graph, _ = whole_graph(lambda x, weight: meets(x, weight, group))
    regions = looked_at(graph, whole=True)
    graph = compiled(graph)
    region = next(n for n in graph.graph.nodes if n.op == "call_function")
    with graph.graph.inserting_after(region):
        graph.graph.node_copy(region, lambda n: n)
    assert regions.allow(graph) == 2
    assert "which of them communicates" in regions.obstacle


def test_a_second_look_keeps_what_the_first_one_saw() -> None:
    """A pipeline may compile regions, and then all that is left, where each is one call."""
    for first, seen in ((writes, (True, False)), (draws, (False, True))):
        regions = looked_at(marked(first)[0], whole=False)
        regions.look_at(marked(step)[0], whole=False)
        assert (bool(regions.obstacle), regions.draws) == seen


@pytest.mark.usefixtures("fresh")
def test_a_region_that_draws_is_carried(passes: GraphPasses) -> None:
    """Each call has the draws of the region itself, which the generator goes on with."""
    graph, args = marked(draws)
    regions = looked_at(graph, whole=False)
    assert regions.draws and not regions.obstacle
    graph = compiled(graph)
    torch.manual_seed(1)
    expected = [graph_results(graph, args) for _ in range(6)]
    assert not torch.equal(expected[0][1], expected[1][1])
    assert regions.allow(graph) == 1
    passes.configure({"on_missed": "raise", "min_partition_size": 1})
    ours = passes.step(graph, [1])
    torch.manual_seed(1)
    for each in expected:
        assert all(map(torch.equal, ours(*args), each))
    assert replays() > 0
    # The passes know of it, which shows on a GPU alone.
    called = {code.operator for code in compiled_ops._LIVE.values()}
    assert torch.ops.gravure.compiled_random.default in called


@pytest.mark.skipif(MINOR < 15, reason="this torch traces no generator")
def test_a_region_that_draws_from_a_generator_of_its_own_is_not() -> None:
    graph, _ = marked(draws_from_another)
    regions = looked_at(graph, whole=False)
    assert re.search("bernoulli.*of its own", regions.obstacle)


def test_a_region_that_reads_is_not() -> None:
    args = torch.randn(8, 16), torch.randn(8, 16)
    graph = make_fx(lambda x, y: x.masked_select(y > 0), tracing_mode="symbolic")(*args)
    regions = looked_at(graph, whole=True)
    assert re.search("masked_select.*reads", regions.obstacle)


def by_mask(x: Tensor, y: Tensor) -> Tensor:
    return x[y > 0]


def by_numbers(x: Tensor, y: Tensor) -> Tensor:
    return x[y.argsort(-1)[0] % 8]


@pytest.mark.parametrize(("indexed", "reads"), [(by_mask, True), (by_numbers, False)])
def test_a_region_that_indexes_reads_where_it_counts_a_mask(
    indexed: Callable[..., Tensor], reads: bool
) -> None:
    args = torch.randn(8, 16), torch.randn(8, 16)
    for mode in ("real", "symbolic"):
        graph = make_fx(indexed, tracing_mode=mode)(*args)
        nodes = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.index.Tensor)
        assert len(nodes) == 1
        regions = looked_at(graph, whole=True)
        assert ("reads" in regions.obstacle) is reads, regions.obstacle


def graph_results(graph: Any, args: tuple[Tensor, ...]) -> list[Tensor]:
    return [t.clone() for t in graph(*(a.clone() for a in args))]


def test_regions_that_nobody_looked_at_are_not_carried() -> None:
    """Those of torchtitan's precompiled artifacts."""
    graph = compiled(marked(step)[0])
    regions = RegionEffects()
    assert regions.allow(graph) == 1
    assert "nobody knows" in regions.obstacle
    assert not any("gravure_carried" in node.meta for node in graph.graph.nodes)


def from_a_file(graph: fx.GraphModule) -> fx.GraphModule:
    """As torchtitan's artifacts come: without examples of what nodes give."""
    for node in graph.graph.nodes:
        node.meta.pop("val", None)
    return graph


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("were_seen", [True, False])
def test_regions_from_a_file(
    passes: GraphPasses, caplog: pytest.LogCaptureFixture, were_seen: bool
) -> None:
    """They are carried where they were looked at before the file was made."""
    graph, args = marked(step)
    maker = looked_at(graph, whole=False)
    graph = compiled(graph)
    expected = [t.clone() for t in graph(*args)]
    if were_seen:
        maker.allow(graph)
    graph = from_a_file(graph)
    regions = RegionEffects()
    assert regions.allow(graph) == 1
    assert bool(regions.obstacle) != were_seen
    passes.configure({"min_partition_size": 1})
    ours = passes.step(graph, [1])
    for _ in range(5):
        assert all(map(torch.equal, ours(*args), expected))
    assert (replays() > 0) == were_seen
    assert ("runs as it is" in caplog.text) != were_seen


def test_a_whole_graph_is_looked_at_without_marks() -> None:
    graph, _ = marked(writes)
    for node in graph.graph.nodes:
        node.meta.pop("custom", None)
    regions = looked_at(graph, whole=False)
    assert not regions.obstacle
    regions.look_at(graph, whole=True)
    assert "write" in regions.obstacle


def in_place(x: Tensor, weight: Tensor) -> list[Tensor]:
    """As a chunked loss adds up: into what it has made, or into a part of it."""
    y = x @ weight
    y.view(-1)[3:].add_(1)
    values, _ = y.sort()
    torch._foreach_mul_([values, y], 2.0)
    return [values.sum(), y]


def into_a_part(x: Tensor, weight: Tensor) -> list[Tensor]:
    weight.t()[0].mul_(2)
    return [(x @ weight).sum()]


def test_a_whole_graph_may_write_into_what_it_has_made() -> None:
    for function, obstacle in ((in_place, ""), (into_a_part, "mul_.Tensor in them may write")):
        graph, _ = marked(function)
        regions = looked_at(graph, whole=True)
        assert obstacle in regions.obstacle
        assert bool(obstacle) == bool(regions.obstacle)

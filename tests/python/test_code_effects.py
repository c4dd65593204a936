"""Regions that Inductor compiled where Gravure did not look: what their own code says of them.

Each is compiled by PyTorch's `regional_inductor` alone, and read from a file, as torchtitan's
precompiled artifacts are: without examples of what nodes give.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._functorch.config
from gravure.calls.graph_passes import GraphPasses
from gravure.graphs import code_effects, compiled_ops
from gravure.graphs.code_effects import operators_of
from gravure.graphs.marked_regions import RegionEffects, communicated_by
from gravure.torch_api.compiled_code import KeptCode, UnknownCode, kept_code
from gravure.torch_api.private_names import MINOR
from running import need_library
from titan_model import replays
from torch import Tensor, fx
from torch._inductor.output_code import RegionalOutputCode
from torch._subclasses import FakeTensorMode
from torch.fx._graph_pickler import GraphPickler, Options
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.passes.regional_inductor import regional_inductor

need_library()
pytestmark = pytest.mark.skipif(MINOR < 13, reason="torchtitan's artifacts need torch 2.13")
MARK = {"compile_with_inductor": {"inductor_configs": {}}}
LOST = ("val", "eager_input_vals", "source_fn_stack", "nn_module_stack", "fwd_source_fn_stack")


@torch.library.custom_op("code_effects::add_one_", mutates_args=("into",))
def add_one_(into: Tensor) -> None:
    into += 1


def computes(x: Tensor, weight: Tensor) -> list[Tensor]:
    y = x @ weight
    return [y.sum(), y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5), y.sort()[0]]


def draws(x: Tensor, weight: Tensor) -> list[Tensor]:
    y = x @ weight
    return [y, torch.bernoulli(torch.sigmoid(y))]


def writes(x: Tensor, weight: Tensor) -> list[Tensor]:
    weight.rsqrt_()
    return [x @ weight]


def writes_by_custom_operator(x: Tensor, weight: Tensor) -> list[Tensor]:
    torch.ops.code_effects.add_one_(weight)
    return [x @ weight]


def writes_into_its_own(x: Tensor, weight: Tensor) -> list[Tensor]:
    y = x @ weight
    torch.ops.code_effects.add_one_(y)
    return [y, y @ weight.t()]


def reads(x: Tensor, weight: Tensor) -> list[Tensor]:
    return [x @ weight, torch.nonzero(x)]


def views(x: Tensor, weight: Tensor) -> list[Tensor]:
    return [x @ weight, x.t()]


def compiled(function: Callable[..., Any]) -> tuple[fx.GraphModule, tuple[Tensor, ...]]:
    """A graph that is one region, of a file, and arguments."""
    args = torch.randn(8, 16), torch.rand(16, 8) + 1
    with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True) as mode:
        graph = make_fx(function)(*(mode.from_tensor(a, static_shapes=True) for a in args))
    for node in graph.graph.nodes:
        if node.op not in ("placeholder", "output"):
            node.meta["custom"] = dict(MARK)
    context = torch._guards.TracingContext(mode)
    with (
        torch._guards.tracing(context),
        torch._functorch.config.patch("force_autograd_cache", True),
    ):
        code = regional_inductor(graph, ())
    assert isinstance(code, RegionalOutputCode)
    options = Options(ops_filter=None, node_metadata_key_filter=lambda key: key not in LOST)
    data = GraphPickler.dumps(code._graph_module, options)
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    graph = GraphPickler.loads(data, mode)
    graph.graph.set_codegen(torch.fx.graph.CodeGen())
    graph.recompile()
    assert sum(hasattr(node.target, "__wrapped__") for node in graph.graph.nodes) == 1
    return graph, args


def results(graph: Any, args: tuple[Tensor, ...]) -> list[Tensor]:
    return [t.clone() for t in graph(*(a.clone() for a in args))]


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("function", [computes, draws, writes_into_its_own])
def test_a_region_is_carried(function: Callable[..., Any], passes: GraphPasses) -> None:
    graph, args = compiled(function)
    torch.manual_seed(1)
    expected = [results(graph, args) for _ in range(6)]
    regions = RegionEffects()
    assert regions.allow(graph) == 1
    assert not regions.obstacle
    ours = passes.step(graph, [1])
    torch.manual_seed(1)
    for each in expected:
        found = ours(*args)
        assert all(map(torch.equal, found, each))
        assert [t.stride() for t in found] == [t.stride() for t in each]
    assert replays() > 0
    called = {code.operator for code in compiled_ops._LIVE.values()}
    assert (torch.ops.gravure.compiled_random.default in called) is (function is draws)
    assert torch.equal(expected[0][1], expected[1][1]) is (function is not draws)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (writes, "they write into their inputs"),
        (writes_by_custom_operator, "they write into their inputs"),
        (reads, "aten.nonzero.default in them reads on the host"),
        (views, "they return views of their inputs"),
    ],
)
def test_a_region_is_not_carried(
    function: Callable[..., Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    graph, args = compiled(function)
    expected = results(graph, args)
    regions = RegionEffects()
    assert regions.allow(graph) == 1
    assert reason in regions.obstacle
    made = GraphPasses()
    with caplog.at_level(logging.WARNING, "gravure"):
        ours = made.step(graph, [])
        for _ in range(4):
            assert all(map(torch.equal, results(ours, args), expected))
    assert "runs as it is" in caplog.text
    assert replays() == 0
    made.shutdown()


HEAD = '''
import torch
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.select_algorithm import extern_kernels
aten = torch.ops.aten
empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu
reinterpret_tensor = torch._C._dynamo.guards._reinterpret_tensor
empty_strided_p2p = torch._C._distributed_c10d._SymmetricMemory.empty_strided_p2p
async_compile = AsyncCompile()
cpp_fused_0 = async_compile.cpp_pybinding(['const float*', 'float*'], r"""
extern "C"  void  kernel(const float* in_ptr0,
                       float* out_ptr0)
{
}
""")
cpp_template_1 = async_compile.cpp_pybinding(['float*', 'float*'], r"""
extern "C"  void  kernel(float* arg_A, float* out_ptr0)
{
}
""")
async_compile.wait(globals())
def get_args():
    from torch._dynamo.testing import rand_strided
    return [rand_strided((4, 4), (4, 1), device='cpu', dtype=torch.float32)]
'''
CALL = """
class Runner:
    def call(self, args):
        arg0_1, = args
        args.clear()
        buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
        {}
        return (buf0, )
runner = Runner(partitions=[])
call = runner.call
"""


class Code:
    """Stands for Inductor's code of a region."""

    __module__ = "torch._inductor.standalone_compile"

    def __call__(self, *args: Any) -> Any:
        return [args[0]]


def region(
    monkeypatch: pytest.MonkeyPatch, lines: str, constants: dict[str, Tensor] | None = None
) -> fx.GraphModule:
    source = HEAD + CALL.format(lines.replace("\n", "\n        "))
    monkeypatch.setattr(code_effects, "kept_code", lambda _: KeptCode(source, constants or {}))
    graph = fx.Graph()

    def target(x: Tensor) -> Any:
        return x

    target.__wrapped__ = Code()  # type: ignore[attr-defined]
    graph.output(graph.call_function(target, (graph.placeholder("x"),)))
    return fx.GraphModule({}, graph)


@pytest.mark.parametrize(
    "lines",
    [
        "cpp_fused_0(arg0_1, buf0)",
        "cpp_fused_0(_tensor_constant0, buf0)",
        "cpp_template_1(arg0_1, buf0)",
        "extern_kernels.mm(arg0_1, arg0_1, out=buf0)",
        "aten.add_.Tensor(reinterpret_tensor(buf0, (2, ), (1, ), 3), 1)",
        "buf1 = buf0; del buf0\nbuf0 = torch.ops.aten.sort.stable(buf1, stable=False, dim=0)[0]",
        "with torch.cuda._DeviceGuard(0):\n    cpp_fused_0(arg0_1, buf0)",
    ],
)
def test_code_that_computes(monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    regions = RegionEffects()
    graph = region(monkeypatch, lines, {"_tensor_constant0": torch.ones(4, 4)})
    assert regions.allow(graph) == 1
    assert not regions.obstacle
    assert [node.meta.get("gravure_carried") for node in graph.graph.nodes] == [None, False, None]


REDUCE = "torch.ops._c10d_functional.all_reduce_.default(buf0, 'sum', '0')"
WAIT = "torch.ops._c10d_functional.wait_tensor.default(buf0)"
ON_A_GPU = """
import torch
import triton
from torch._inductor.async_compile import AsyncCompile
from torch._C._dynamo.guards import copy_if_misaligned
empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda
get_raw_stream = torch._C._cuda_getCurrentRawStream
async_compile = AsyncCompile()
triton_poi_fused_0 = async_compile.triton('triton_poi_fused_0', \'\'\'
@triton.jit
def _helper(out_ptr7):
    return out_ptr7

@triton_heuristics.pointwise(size_hints={'x': 16}, inductor_meta={'mutated_arg_names': []})
@triton.jit
def triton_poi_fused_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    pass
\'\'\', device_str='cuda')
def partition_0(args):
    arg0_1, = args
    args.clear()
    arg0_1 = copy_if_misaligned(arg0_1)
    with torch.cuda._DeviceGuard(torch.cuda.current_device()):
        torch.cuda.set_device(0)
        buf0 = empty_strided_cuda((4, 4), (4, 1), torch.float32)
        stream0 = get_raw_stream(0)
        triton_poi_fused_0.run({}, 16, stream=stream0)
        del arg0_1
    return (buf0, )
class Runner:
    def call(self, args):
        arg0_1, = args
        args.clear()
        partition0_args = [arg0_1]
        del arg0_1
        (buf0,) = self.partitions[0](partition0_args)
        return (buf0, )
def get_args():
    from torch._dynamo.testing import rand_strided
    return [rand_strided((4, 4), (4, 1), device='cuda:0', dtype=torch.float32)]
"""


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch knows no CUDA")
@pytest.mark.parametrize(
    ("operands", "reason"),
    [("arg0_1, buf0", ""), ("buf0, arg0_1", "may write into what they were given")],
)
def test_code_for_a_gpu(monkeypatch: pytest.MonkeyPatch, operands: str, reason: str) -> None:
    """Is judged where there is none, too."""
    source = ON_A_GPU.replace("{}", operands)
    monkeypatch.setattr(code_effects, "kept_code", lambda _: KeptCode(source, {}))
    assert reason in operators_of(None, {})[1]
    assert bool(reason) == bool(operators_of(None, {})[1])


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("aten.add_.Tensor(arg0_1, 1)", "aten.add_.Tensor in them may write"),
        ("aten.add_.Tensor(reinterpret_tensor(arg0_1, (2, ), (1, ), 3), 1)", "may write"),
        ("torch.ops.code_effects.add_one_.default(arg0_1)", "add_one_.default in them may write"),
        ("cpp_fused_0(buf0, arg0_1)", "may write into what they were given, in cpp_fused_0"),
        ("cpp_fused_0(buf0, _tensor_constant0)", "may write into what they were given"),
        ("cpp_template_1(_tensor_constant0, buf0)", "may write into what they were given"),
        ("extern_kernels.mm(buf0, buf0, out=arg0_1)", "aten.mm.out in them may write"),
        ("buf1 = arg0_1.sum().item()", "_local_scalar_dense.default in them reads on the host"),
        (
            "buf1 = torch.ops.aten.index.Tensor(arg0_1, [arg0_1 > 0])",
            "aten.index.Tensor in them reads on the host",
        ),
        (REDUCE, "all_reduce_.default in them communicates, and is not waited for in them"),
        (f"{REDUCE}\n{WAIT}\n{REDUCE}", "communicates, and is not waited for in them"),
        (WAIT, "wait_tensor.default in them waits for what began before them"),
        (f"{REDUCE}\n{WAIT}".replace("buf0", "arg0_1"), "all_reduce_.default in them may write"),
        ("torch.ops.symm_mem.one_shot_all_reduce.default(arg0_1, 'sum', '0')", "communicates"),
        ("buf1 = empty_strided_p2p((4, ), (1, ), torch.float32)", "empty_strided_p2p"),
        ("extern_kernels.theirs(buf0)", "call theirs, a kernel that is not known"),
        ("torch.cuda.synchronize()", "call torch.cuda.synchronize, which is not known"),
        ("print(buf0)", "name 'print' is not defined"),
        ("buf1 = __import__('os')", "have code that is not known"),
        ("buf1 = arg0_1.__class__", "have code that is not known"),
        ("if arg0_1.size()[0] > 3:\n    buf0 = arg0_1", "have code that is not known"),
        ("buf0.copy_(torch.empty_strided((4, 4), (4, 1), device='meta'))", "more than one device"),
        (
            "torch.ops.higher_order.run_and_save_rng_state(torch.ops.aten.rand.default, [4])",
            "cannot be followed",
        ),
        ("buf0 = arg0_1.new_empty_strided((4, 4), (4, 1)).to(torch.device('meta'))", "device"),
    ],
)
def test_code_that_does_more(monkeypatch: pytest.MonkeyPatch, lines: str, reason: str) -> None:
    regions = RegionEffects()
    graph = region(monkeypatch, lines, {"_tensor_constant0": torch.ones(4, 4)})
    assert regions.allow(graph) == 1
    assert reason in regions.obstacle, regions.obstacle
    assert not any("gravure_carried" in node.meta for node in graph.graph.nodes)


def test_code_that_communicates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each collective is waited for, by its result or by the memory that it writes; once, or once
    for each of several."""
    lines = f"""{REDUCE}
{WAIT}
buf1 = torch.ops._c10d_functional.all_gather_into_tensor.default(arg0_1, 2, '3')
buf2, buf3 = torch.ops._c10d_functional.all_reduce_coalesced.default([arg0_1, buf0], 'max', '1')
{WAIT.replace("buf0", "buf3")}
{WAIT.replace("buf0", "buf1")}
{WAIT.replace("buf0", "buf2")}
{REDUCE}
buf0 = torch.ops._c10d_functional.wait_tensor.default(buf0)"""
    regions = RegionEffects()
    graph = region(monkeypatch, lines)
    assert regions.allow(graph) == 1
    assert not regions.obstacle
    (carried,) = (node for node in graph.graph.nodes if "gravure_carried" in node.meta)
    reduced = ("0", "_c10d_functional.all_reduce_(float32[4, 4], 'sum')")
    operands = "[float32[4, 4], float32[4, 4]]"
    assert communicated_by(carried) == [
        reduced,
        ("3", "_c10d_functional.all_gather_into_tensor(float32[4, 4], 2)"),
        ("1", f"_c10d_functional.all_reduce_coalesced({operands}, 'max')"),
        reduced,
    ]


def test_code_that_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    regions = RegionEffects()
    graph = region(monkeypatch, "aten.randint.low_out(0, 9, [4, 4], out=buf0)")
    assert regions.allow(graph) == 1
    assert not regions.obstacle
    assert [node.meta.get("gravure_carried") for node in graph.graph.nodes] == [None, True, None]


def test_what_came_compiled_is_read_though_others_were_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = region(monkeypatch, "aten.add_.Tensor(arg0_1, 1)")
    regions = RegionEffects()
    regions.look_at(graph, whole=False)
    assert regions.allow(graph) == 1
    assert "may write" in regions.obstacle


def test_a_record_that_lacks_something_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = compiled(lambda x, weight: [x @ weight])
    (target,) = (n.target for n in graph.graph.nodes if hasattr(n.target, "__wrapped__"))
    assert operators_of(target, {})[1] == ""
    entry = target.__wrapped__.inner_fn.compiled_fn.serialize()
    code = entry.compiled_fw.result
    for owner, name in (
        (code, "mutated_input_idxs"),
        (code, "source_code"),
        (code, "device_types"),
        (entry, "runtime_metadata"),
        (entry, "compiled_bw"),
        (entry.runtime_metadata, "tokens"),
    ):
        with monkeypatch.context() as without:
            without.delitem(vars(owner), name)
            with pytest.raises(UnknownCode):
                kept_code(target)
            assert "nobody knows" in operators_of(target, {})[1]
    assert kept_code(target).source

"""codegen="inductor": regions of partitions as compiled code, captured with the rest."""

from __future__ import annotations

import copy
import logging
import operator
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import gravure
import models
import pytest
import torch
import torch._functorch.config as functorch_config
import torch.nn as nn
import torch.nn.functional as F
from gravure.graphs import codegen
from gravure.graphs.compiled_ops import CompiledCode, Layout
from gravure.graphs.compiled_regions import compile_regions
from gravure.graphs.known_numbers import KnownNumbers
from region_compiler import RegionCompiler
from running import DEVICES, bits, need_library
from torch import Tensor, fx
from torch._inductor import async_compile
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint
from training import (
    Checkpointed,
    Mlp,
    Normed,
    images,
    leaves,
    replays,
    rows,
    same_as_eager,
    same_steps,
    state_of,
)

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

INDUCTOR = {"codegen": "inductor"}


@pytest.mark.parametrize("way", ["backend", "step"])
def test_processes_that_compile_kernels_start_before_the_tracing(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take seconds to start. Here the model says when Dynamo traces it."""
    seen: list[str] = []

    @torch.compiler.assume_constant_result
    def trace() -> int:
        seen.append("traces")
        return 1

    def step(x: Tensor) -> Tensor:
        return (x * trace()).square().mean()

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(async_compile, "maybe_warm_pool", lambda: seen.append("starts"))
    x = torch.ones(4, requires_grad=True)
    for options in ({}, INDUCTOR):
        if way == "step":
            gravure.compile_step(step, options=options)(x)
        else:
            torch._dynamo.reset()
            torch.compile(step, backend="gravure", options=options)(x)
        assert seen[0] == ("starts" if options else "traces")
        assert ("starts" in seen) == bool(options)
        seen.clear()


@pytest.mark.parametrize(
    "way", ["torch.compile(f, backend='gravure', ", "gravure.compile_step(f, "]
)
def test_inductor_is_imported_where_it_is_asked_for(way: str) -> None:
    """As torch.compile does, and not in the first call; not for ATen's kernels."""
    code = f"""
import sys, torch, gravure
f = lambda x: x.sum()
for options in ({{}}, {{"codegen": "inductor"}}):
    {way}options=options)
    print("torch._inductor.compile_fx" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True"]


class Mixed(nn.Module):
    """A number read on the host, views that leave, a buffer that is written, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(8, 8) for _ in range(3))
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        h = F.dropout(F.silu(self.first(x)), 0.2, self.training)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(h.mean(0))
        count = (h.detach().abs() > 0.1).sum().clamp(1, 3).item()
        torch._check(count >= 1)
        torch._check(count <= 3)
        y = F.gelu(self.second(h + self.mean)) * count
        wide = y.expand(2, *y.shape)
        return self.last(y).tanh(), y.t(), y.view(-1), wide, x[:, ::2] + 0, y[1:].split(2, 1)


@pytest.mark.parametrize(
    ("model", "batches"),
    [(Mlp(0.15), rows), (Normed(), images), (Mixed(), rows), (Checkpointed(2), rows)],
    ids=["mlp", "normed", "mixed", "checkpointed"],
)
def test_regions_change_no_bit(
    region_compiler: RegionCompiler, model: nn.Module, batches: Callable[[int], Any]
) -> None:
    report = same_as_eager(model, batches, options=INDUCTOR, fullgraph=True)
    assert replays(report) and region_compiler.operators and region_compiler.calls
    assert max(region_compiler.operators) > 1


IMPORTS = """
import importlib, pkgutil, gravure
for module in pkgutil.walk_packages(gravure.__path__, "gravure."):
    if module.name != "gravure.torchtitan":  # which asks for torchtitan
        importlib.import_module(module.name)
import torch._inductor.lowering
"""


def test_inductor_is_imported_beside_every_module_of_ours() -> None:
    """In a process that has not loaded the library: Inductor's import looks operators up."""
    subprocess.run([sys.executable, "-c", IMPORTS], check=True, timeout=300)


def test_temporaries_of_compiled_code_follow_one_another_in_the_arena(
    region_compiler: RegionCompiler,
) -> None:
    def chain(x: Tensor) -> Tensor:
        for _ in range(8):
            x = torch.tanh(x * 1.5) + x
        return x.sum()

    size = 1 << 20
    call = torch.compile(chain, backend="gravure", options=INDUCTOR | {"poison": True})
    with torch.no_grad():
        for seed in range(6):
            x = torch.randn(size // 4, generator=torch.Generator().manual_seed(seed))
            assert torch.equal(call(x), chain(x))
    graph = gravure.report().graphs[-1]  # Dynamo keeps graphs that broke until the process ends
    assert region_compiler.calls and graph.programs[0].stats["replays"]
    # Of 24 results three live at once, beside the input's copy.
    arena = graph.programs[0].stats["arena_bytes"]
    assert 3 * size <= arena <= 4.5 * size


class Deep(nn.Module):
    """As many bytes of activations as of gradients. What it returns, its backward reads."""

    BYTES = 4 * 128 * 128

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(128, 128, bias=False) for _ in range(8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean(), x


def wide_rows(seed: int) -> tuple[Tensor]:
    return (torch.randn(128, 128, generator=torch.Generator().manual_seed(seed)),)


def keep_output(model: Any, optimizer: torch.optim.Optimizer, batch: Any) -> Any:
    optimizer.zero_grad()
    loss, output = model(*batch)
    before = output.detach().clone()
    loss.backward()
    optimizer.step()
    return loss, output, before


def differentiate_twice(model: Any, optimizer: torch.optim.Optimizer, batch: Any) -> Any:
    optimizer.zero_grad()
    loss, output = model(*batch)
    loss.backward(retain_graph=True)
    (loss * 2).backward()
    optimizer.step()
    return loss, output


@pytest.mark.parametrize("step", [keep_output, differentiate_twice])
def test_gradients_lie_where_a_compiled_backward_lets_go_of_activations(
    region_compiler: RegionCompiler, step: Any
) -> None:
    report = same_as_eager(Deep(), wide_rows, step, 9, options=INDUCTOR, fullgraph=True)
    assert replays(report) and region_compiler.calls
    (program,) = report.graphs[-1].programs
    stats = program.stats
    if step is differentiate_twice:
        return
    # Side by side: eight gradients, and what the last of them is made of.
    assert stats["arena_bytes"] < stats["held_bytes"] + 6 * Deep.BYTES


def test_a_result_may_lie_where_an_operand_was_and_is_no_copy(
    region_compiler: RegionCompiler,
) -> None:
    """Its address is an input's, whose code has let go of it: it shares no memory."""
    copies: list[Layout] = []
    original = Layout.copy_of

    def copy_of(self: Layout, tensor: Tensor) -> Tensor:
        copies.append(self)
        return original(self, tensor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Layout, "copy_of", copy_of)
        same_as_eager(Deep(), wide_rows, keep_output, options=INDUCTOR, fullgraph=True)
    assert region_compiler.calls and not copies


def test_a_write_stays_behind_what_reads_the_old_value() -> None:
    aten, graph = torch.ops.aten, fx.Graph()
    x, old = (graph.placeholder(name) for name in ("x", "old"))
    more = graph.call_function(aten.add.Tensor, (x, x))
    new = graph.call_function(aten.mul.Tensor, (more, more))
    waited = graph.call_function(torch.ops._c10d_functional.wait_tensor.default, (new,))
    read = graph.call_function(aten.mul.Tensor, (waited, old))
    result = graph.call_function(aten.add.Tensor, (read, old))
    written = graph.call_function(aten.copy_.default, (old, new))
    graph.output((result, written))
    with FakeTensorMode():
        for node in graph.nodes:
            node.meta["val"] = torch.empty(4)
    module = fx.GraphModule(torch.nn.Module(), graph)
    calls = [node for node in graph.nodes if node.op == "call_function"]
    compiled = compile_regions(
        module, calls, [[0, *range(len(calls))], [-3]], KnownNumbers(), "test", RegionCompiler()
    )
    targets = [n.target for n in compiled.module.graph.nodes if n.op == "call_function"]
    kept = [t for t in targets if t is not operator.getitem]
    code = torch.ops.gravure.compiled.default
    wait = torch.ops._c10d_functional.wait_tensor.default
    assert kept == [code, wait, code, aten.copy_.default] and not compiled.missed


def test_what_copies_from_the_cpu_stays_out_of_a_stretch() -> None:
    """Inductor's code for it is a copy to the GPU, which no graph holds. Numbers divide nothing."""
    aten, graph = torch.ops.aten, fx.Graph()
    x, number = (graph.placeholder(name) for name in ("x", "number"))
    more = graph.call_function(aten.mul.Tensor, (x, x))
    lifted = graph.call_function(aten.lift_fresh_copy.default, (number,))
    scaled = graph.call_function(aten.mul.Tensor, (more, lifted))
    filled = graph.call_function(aten.fill.Tensor, (scaled, lifted))
    wide = graph.call_function(aten.add.Tensor, (filled, scaled))
    graph.output(graph.call_function(aten.mul.Tensor, (wide, wide)))
    with FakeTensorMode():
        for node in graph.nodes:
            host = node in (number, lifted)
            node.meta["val"] = torch.empty(() if host else 4, device="cpu" if host else "cuda")
    calls = [node for node in graph.nodes if node.op == "call_function"]
    compiler, module = RegionCompiler(), fx.GraphModule(torch.nn.Module(), graph)
    runs = [[0, *range(len(calls))], [-3]]
    compiled = compile_regions(module, calls, runs, KnownNumbers(), "test", compiler)
    targets = [n.target for n in compiled.module.graph.nodes if n.op == "call_function"]
    kept = [t for t in targets if t is not operator.getitem]
    code = torch.ops.gravure.compiled.default
    assert kept == [aten.lift_fresh_copy.default, code, aten.fill.Tensor, code]
    assert compiler.operators == [2, 2]


class Written(nn.Module):
    """Numbers that are written by index, by mask, and out of tensors."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        y[0] = 0
        y[:, 1] = torch.tensor(0.1, dtype=torch.float64)
        y[y > 1] = -1
        y[torch.tensor([True] + [False] * 4)] = True
        y[y.clone().abs() < 0.3, None] = 7.0
        y[2:, 2].copy_(torch.tensor(3))
        y[4] = x.detach().amax()  # known only at run time
        return y.masked_fill(x < -1, torch.tensor(0.1)).sin()


def test_written_constants_are_numbers_for_inductor(region_compiler: RegionCompiler) -> None:
    model = nn.Sequential(nn.Linear(8, 8), Written())
    report = same_as_eager(model, rows, options=INDUCTOR)
    text = report.graphs[0].programs[0].plan
    assert replays(report) and "aten::fill.Scalar" not in text  # inside of the code
    (first, *_) = region_compiler.targets
    counts = {"aten.fill.Scalar": 3, "aten.masked_fill.Scalar": 4, "aten.fill.Tensor": 1}
    assert {name: first.count(name) for name in counts} == counts
    assert not any("index_put" in target for target in first)


@pytest.mark.parametrize("device", DEVICES)
def test_compiling_draws_none_of_the_callers_numbers(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """Inductor times kernels with numbers that it draws: with open sizes in the caller's call."""
    drawn = []

    def compile_fx_inner(module: fx.GraphModule, *_: Any, **__: Any) -> Callable[..., Any]:
        drawn.append(torch.randn(7, device=device))
        return lambda inputs: module(*inputs)

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", compile_fx_inner)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).to(device)
    call = torch.compile(model, backend="gravure", dynamic=True, options=INDUCTOR)
    for size in (5, 6):
        x = torch.randn(size, 8, device=device)
        before = states()
        call(x).square().mean().backward()
        assert states() == before
    assert drawn


def states() -> list[Any]:
    return [bits(torch.get_rng_state()), *map(bits, torch.cuda.get_rng_state_all())]


def test_code_that_draws_says_so(region_compiler: RegionCompiler) -> None:
    for model, name in ((Mlp(), "compiled"), (Mlp(0.15), "compiled_random")):
        report = same_as_eager(model, rows, steps=1, options=INDUCTOR)
        text = report.graphs[0].programs[0].plan
        assert re.search(rf"= gravure::{name}\b", text), text


def test_other_sizes_are_other_regions(region_compiler: RegionCompiler) -> None:
    def batches(i: int) -> tuple[Tensor]:
        return (torch.randn(4 + i // 7, 8),)

    report = same_as_eager(Mlp(), batches, steps=21, options=INDUCTOR, dynamic=True)
    (graph,) = report.graphs
    assert [p.sizes for p in graph.programs] == [[4], [5], [6]] and replays(report)
    assert len(region_compiler.operators) == 6


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_comes_before_inductors_kernels_traces_every_size(
    monkeypatch: pytest.MonkeyPatch, *, dynamic: bool
) -> None:
    """The first one is compiled within AOTAutograd's first call, which has a mode of its own."""
    compiled = []

    def compile_fx_inner(module: fx.GraphModule, *_: Any, **how: Any) -> Callable[..., Any]:
        compiled.append(how["is_backward"])

        def run(inputs: list[Tensor]) -> Any:
            given = inputs.copy()
            inputs.clear()
            return module(*given)

        return run

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", compile_fx_inner)
    model, older = Mlp(), [graph.number for graph in gravure.report().graphs]
    call = torch.compile(model, backend="gravure", dynamic=dynamic, options=INDUCTOR)
    for size in (4, 5):
        x = torch.randn(size, 8)
        for _ in range(5):
            found = [call(x), model(x)]
            torch.testing.assert_close(*found)
            gradients = [torch.autograd.grad(y.square().mean(), model.parameters()) for y in found]
            torch.testing.assert_close(*gradients)
    assert compiled == [False, True] * 2
    graphs = [graph for graph in gravure.report().graphs if graph.number not in older]
    remarks = [p.remarks for graph in graphs for p in graph.programs]
    assert len(remarks) == 2 and "compile-failed" not in str(remarks)


@pytest.mark.parametrize("way", ["divided", "undivided"])
def test_a_step_of_regions_around_host_reads(region_compiler: RegionCompiler, way: str) -> None:
    model = models.moe()
    ours = copy.deepcopy(model.module)
    step = gravure.compile_step(ours, options=INDUCTOR | {"poison": True, "regions": way})
    same_steps(step, ours, model, 5)
    assert region_compiler.calls


def test_a_step_with_its_optimizer(region_compiler: RegionCompiler) -> None:
    both = [Mlp()]
    both.append(copy.deepcopy(both[0]))
    optimizers = [torch.optim.AdamW(m.parameters(), 0.01, fused=True) for m in both]
    step = gravure.compile_step(
        lambda x: both[1](x).square().mean(), optimizer=optimizers[1], options=INDUCTOR
    )
    for i in range(6):
        (x,) = rows(i)
        found = step(x)
        loss = both[0](x).square().mean()
        loss.backward()
        optimizers[0].step()
        optimizers[0].zero_grad()
        assert leaves(found) == leaves(loss.detach()) and state_of(both[1]) == state_of(both[0])
    assert region_compiler.calls


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NotImplementedError("no such kernel\nand more"), "no such kernel"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_what_inductor_refuses_runs_as_it_is(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also what says no word: many a check of Inductor's is a bare assert."""

    def refuse(module: fx.GraphModule, **_: Any) -> Any:
        raise type(error)(*error.args)

    monkeypatch.setattr(codegen, "compile_region", refuse)
    with caplog.at_level(logging.WARNING, "gravure"):
        report = same_as_eager(Mlp(), rows, options=INDUCTOR)
    assert replays(report) and said in caplog.text
    assert any("compile-failed" in r for r in report.graphs[0].programs[0].remarks)
    torch._dynamo.reset()
    strict = torch.compile(Mlp(), backend="gravure", options=INDUCTOR | {"on_missed": "raise"})
    with pytest.raises(Exception, match=f"compile-failed.*{said}"):
        strict(*rows(0))


def masked(x: Tensor) -> Tensor:
    return (torch.rand(x.shape) > 0.5) * x.exp()


def test_a_cut_whose_backward_would_draw_anew_is_not_taken(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """PyTorch's partitioner makes it, where it is told to save less than it likes to."""
    call = torch.compile(masked, backend="gravure", options=INDUCTOR | {"on_missed": "raise"})
    with functorch_config.patch(activation_memory_budget=0.0):
        for _ in range(5):
            x = torch.rand(16, 16).requires_grad_()
            result = call(x)
            (gradient,) = torch.autograd.grad(result, x, torch.ones_like(result))
            assert bits(gradient == 0) == bits(result == 0)
    assert replays(gravure.report())
    assert "would draw aten.rand.default anew" in caplog.text
    assert "activation_memory_budget" in caplog.text


def attention(x: Tensor) -> Tensor:
    q, k, v = (part.view(2, 8, 2, 8).transpose(1, 2) for part in (x * 2).split(16, -1))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).square()


def test_attention_without_dropout_may_be_computed_twice(caplog: pytest.LogCaptureFixture) -> None:
    """Its operator may draw, by its tags; with a rate of 0 it does not."""
    call = torch.compile(
        lambda x: checkpoint(attention, x, use_reentrant=False).sum(),
        backend="gravure",
        options=INDUCTOR | {"on_missed": "raise"},
    )
    x = torch.rand(2, 8, 48).requires_grad_()
    (found,) = torch.autograd.grad(call(x), x)
    (expected,) = torch.autograd.grad(attention(x).sum(), x)
    assert near(found, expected) and "anew" not in caplog.text


def test_options_of_codegen() -> None:
    with pytest.raises(ValueError, match="expected 'aten' or 'inductor', found 'triton'"):
        gravure.compile_step(lambda: None, options={"codegen": "triton"})


# ---- compiled code as an operator


def _layout(tensor: Tensor) -> Layout:
    return Layout(tuple(tensor.shape), tuple(tensor.stride()))


def test_each_result_has_memory_and_strides_of_its_own() -> None:
    x, wanted = torch.randn(3, 4), torch.randn(4, 3).t()

    def run(inputs: list[Tensor]) -> list[Tensor]:
        (y,) = inputs
        inputs.clear()
        z = y * 2
        return [y, z, z, z]

    code = CompiledCode(
        "test", run, [_layout(x)], [_layout(x), _layout(x), _layout(x), _layout(wanted)],
        random=False,
    )  # fmt: skip
    results = code.operator(code.name, 1, [x])
    assert [bits(r) for r in results] == [bits(x), *[bits(x * 2)] * 3]
    assert len({t.data_ptr() for t in (x, *results)}) == 5
    assert results[3].stride() == wanted.stride()
    # An input of other strides is laid out as the code expects it.
    assert bits(code.operator(code.name, 1, [x.t().contiguous().t()])[1]) == bits(x * 2)
    with pytest.raises(RuntimeError, match=r"a tensor of \[4, 3\] where its graph has \[3, 4\]"):
        code.operator(code.name, 1, [x.t()])


def test_a_result_without_its_axes_of_one_element_has_them() -> None:
    """Inductor sums over two axes so on a GPU, for the weight of a norm (T5's)."""
    made = torch.arange(6.0)
    code = CompiledCode("test", lambda _: [made], [], [Layout((1, 2, 3), (6, 3, 1))], random=False)
    (found,) = code([], [])
    assert found.shape == (1, 2, 3) and bits(found) == bits(made.view(1, 2, 3))
    for wrong in (torch.arange(5.0), torch.arange(6.0).view(3, 2).t()):
        made = wrong
        with pytest.raises(RuntimeError, match="compiled code met a tensor of"):
            code([], [])


def test_code_that_is_gone_is_an_error() -> None:
    code = CompiledCode("test", lambda inputs: inputs, [], [], random=False)
    operator, name = code.operator, code.name
    del code
    with pytest.raises(RuntimeError, match=f'compiled code "{name}" is gone'):
        operator(name, 1, [])


# ---- Inductor itself


def near(found: Any, expected: Any) -> bool:
    pairs = zip(*(torch.utils._pytree.tree_leaves(v) for v in (found, expected)), strict=True)
    return all(torch.allclose(a, b, atol=1e-5) for a, b in pairs if isinstance(a, Tensor))


def trained(model: nn.Module, call: Callable[..., Any], batch: Any, *, whole: bool) -> list[Any]:
    """What one step leaves: results, gradients, buffers, random state."""
    model.zero_grad()
    result = call(*batch)
    if not whole:
        torch.utils._pytree.tree_leaves(result)[0].square().mean().backward()
    tensors = [t.detach() for t in torch.utils._pytree.tree_leaves(result)]
    tensors += [p.grad for p in model.parameters()] + list(model.buffers())
    return [t.clone() for t in tensors] + [torch.get_rng_state()]


def loss_of(model: nn.Module) -> Callable[..., Any]:
    def loss(*args: Any) -> Any:
        result = model(*args)
        return torch.utils._pytree.tree_leaves(result)[0].square().mean(), result

    return loss


@pytest.mark.parametrize("way", ["backend", "divided", "undivided"])
@pytest.mark.parametrize("model", [Mlp(0.15), Mixed()], ids=["mlp", "mixed"])
def test_captured_kernels_give_the_bits_of_uncaptured_ones(model: nn.Module, way: str) -> None:
    whole = way != "backend"
    older = [graph.number for graph in gravure.report().graphs]
    sides = []
    for options in ({"poison": True}, {"uncaptured": True}):
        ours, options = copy.deepcopy(model), INDUCTOR | options
        if whole:
            call = gravure.compile_step(loss_of(ours), options=options | {"regions": way})
        else:
            options |= {"on_missed": "raise"}
            call = torch.compile(ours, backend="gravure", fullgraph=True, options=options)
        sides.append((ours, call, whole))
    eager = copy.deepcopy(model)
    for i in range(6):
        batch = rows(i)
        torch.manual_seed(i)
        found = trained(*sides[0][:2], batch, whole=whole)
        torch.manual_seed(i)
        uncaptured = trained(*sides[1][:2], batch, whole=whole)
        assert leaves(found) == leaves(uncaptured)
        torch.manual_seed(i)
        if whole:
            eager.zero_grad()
            result = loss_of(eager)(*batch)
            result[0].backward()
            expected = [t.detach() for t in torch.utils._pytree.tree_leaves(result)]
            expected += [p.grad for p in eager.parameters()] + list(eager.buffers())
            expected.append(torch.get_rng_state())
        else:
            expected = trained(eager, eager, batch, whole=False)
        assert near(found, expected) and bits(found[-1]) == bits(expected[-1])
    graphs = [g for g in gravure.report().graphs if g.number not in older]
    states = {s for v in graphs[0].programs[0].partitions.values() for s in v}
    assert states == {"captured"} and not graphs[0].programs[0].remarks

"""torchtitan 0.3's own code builds the pipeline, applies it and trains with the same bits.

Skipped where it is not installed.
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
import sys
import types
from pathlib import Path
from typing import Any

import gravure
import pytest
import titan_on_cpu
import torch
from gravure.calls.graph_passes import GraphPasses
from running import bits, need_library
from titan_model import STEPS, batch, is_installed, llama, loss_of, optimizer_of, replays

need_library()

GRAPH_TRAINER = "torchtitan.experiments.graph_trainer"
_BUCKETING = "joint_transformer_block_bucketing_reordering_pass"  # for a newer torch than 2.11
v03 = pytest.mark.skipif(
    not is_installed(f"{GRAPH_TRAINER}.registry"), reason="torchtitan 0.3 is not installed"
)


class GraphTrainer:
    """The graph trainer's own functions, as `GraphTrainer` calls them."""

    def __init__(self) -> None:
        titan_on_cpu.add_names_of_newer_torch()
        for name in ("registry", "passes", "trainer", "make_fx_tracer", "configs"):
            setattr(self, name, importlib.import_module(f"{GRAPH_TRAINER}.{name}"))

    def trained(self, pipeline: str | None, *disabled: str) -> list[float]:
        model, traced, losses = llama(), None, []
        importlib.import_module(f"{GRAPH_TRAINER}.common_utils").annotate_module_fqns(model)
        step = self.trainer.make_fwd_bwd_step(model, loss_of)
        config = self.config(pipeline or "default", [_BUCKETING, *disabled])
        optimizer = optimizer_of(model)
        for number in range(STEPS):
            arguments = (*batch(number), torch.tensor(32), {})
            if traced is None:
                traced = self.make_fx_tracer.minimal_fx_tracer(step, module=model)(*arguments)
                if pipeline is not None:
                    passes = self.registry.PASS_PIPELINE_REGISTRY[pipeline](
                        traced, config, parallel_dims=None
                    )
                    traced.gm = self.passes.apply_graph_passes(
                        traced.gm, traced.example_inputs, passes, compile_config=config.compile
                    )
            loss, *gradients = self.make_fx_tracer.run_traced(traced, module=model)(*arguments)
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            self.replayed = replays()
        self.kept = model, traced  # its program lives as long
        return losses

    def config(self, pipeline: str, disabled: list[str]) -> Any:
        options = self.configs.GraphTrainerCompileConfig(
            pass_pipeline=pipeline, disable_passes=disabled
        )
        return types.SimpleNamespace(
            compile=options,
            loss=None,
            model_spec=types.SimpleNamespace(model=types.SimpleNamespace(layers=[])),
            parallelism=importlib.import_module("torchtitan.config.configs").ParallelismConfig(),
        )


@pytest.fixture
def graph_trainer(plugin: types.ModuleType) -> GraphTrainer:
    return GraphTrainer()


@v03
def test_the_pipeline_trains_in_one_program(graph_trainer: GraphTrainer) -> None:
    expected = graph_trainer.trained(None)
    assert graph_trainer.replayed == 0
    assert graph_trainer.trained("cudagraph") == expected
    assert graph_trainer.replayed > 0


@v03
def test_a_disabled_pass_stays_disabled(
    graph_trainer: GraphTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "gravure"):
        graph_trainer.trained("cudagraph", "cudagraph_pass")
    assert graph_trainer.replayed == 0
    assert "compile.disable_passes" in caplog.text


@v03
@pytest.mark.parametrize("name", ["cudagraph_pass", "cuda_graph_pass"])
def test_renamed_passes_and_arguments(
    graph_trainer: GraphTrainer,
    plugin: types.ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """Later releases call the pass and what the pipeline is given otherwise."""
    seen: dict[str, Any] = {}

    def other(gm: Any, _: Any) -> Any:
        return gm

    def theirs(gm: Any, _: Any, *, fixed: Any) -> Any:
        raise AssertionError(fixed)

    def construct(_: Any, __: Any, **rest: Any) -> list[Any]:
        seen.update(rest)
        return [other, functools.partial(theirs, fixed=[0])]

    theirs.__name__ = name
    monkeypatch.setattr(graph_trainer.passes, "construct_default_graph_passes", construct)
    traced = types.SimpleNamespace(num_static_inputs=3)
    passes = plugin.cudagraph_pipeline(traced, None, parallelism_context="context")
    assert seen == {"parallelism_context": "context"}
    assert passes[0] is other
    assert passes[1].func is plugin.cudagraph_pass
    assert passes[1].keywords["static_input_indices"] == [0, 1, 2]


@v03
def test_closing_the_trainer_tears_down(
    graph_trainer: GraphTrainer, plugin: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    trainer = types.SimpleNamespace(close=lambda: order.append("trainer"))
    monkeypatch.setattr(plugin, "teardown", lambda: order.append("programs"))
    graph_trainer.registry.POST_INIT_HOOKS["cudagraph"](trainer)
    trainer.close()
    assert order == ["trainer", "programs"]


@v03
def test_a_module_whose_import_failed_once_is_changed_when_it_comes(
    plugin: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "comes_late.py").write_text("import os; os.environ['COMES_LATE']\n")
    monkeypatch.syspath_prepend(tmp_path)
    changed: list[str] = []
    plugin._when_imported("comes_late", lambda module: changed.append(module.__name__))
    with pytest.raises(KeyError):
        importlib.import_module("comes_late")
    monkeypatch.setenv("COMES_LATE", "1")
    importlib.import_module("comes_late")
    assert changed == ["comes_late"]
    assert not any(getattr(finder, "_name", "") == "comes_late" for finder in sys.meta_path)


@v03
def test_the_module_names_torchtitans_configurations(plugin: types.ModuleType) -> None:
    """`--module gravure.torchtitan --config graph_trainer_llama3_debugmodel_sdpa`."""
    titan_on_cpu.add_names_of_newer_torch()
    config = plugin.graph_trainer_llama3_debugmodel_sdpa()
    assert config.compile.pass_pipeline == "cudagraph"
    with pytest.raises(AttributeError, match="no_such_model"):
        _ = plugin.no_such_model


@pytest.mark.usefixtures("fresh")
def test_a_mesh_among_the_results_is_handed_on() -> None:
    """With torch 2.15 a graph takes the mesh of its DTensors, and returns it beside gradients."""

    class Mesh:
        pass

    graph = torch.fx.Graph()
    weight, x, mesh = (graph.placeholder(name) for name in ("weight", "x", "mesh"))
    product = graph.call_function(torch.ops.aten.mm.default, (x, weight))
    doubled = graph.call_function(torch.ops.aten.mul.Tensor, (product, 2.0))
    graph.output([mesh, doubled, product, mesh])
    given = torch.randn(3, 4), torch.randn(2, 3), Mesh()
    fake = torch._subclasses.FakeTensorMode()
    for node, value in zip((weight, x), given, strict=False):
        node.meta["val"] = fake.from_tensor(value)
    mesh.meta["val"] = given[2]
    with fake:
        product.meta["val"] = weight.meta["val"].new_empty(2, 4)
        doubled.meta["val"] = weight.meta["val"].new_empty(2, 4)
    module = torch.fx.GraphModule({}, graph)
    expected = module(given[0].clone(), *given[1:])
    passes = GraphPasses()
    passes.configure({"on_missed": "raise", "min_partition_size": 1})
    step = passes.step(module, [0])
    for _ in range(5):
        other = Mesh()
        first, *middle, last = step(*given[:2], other)
        assert first is other and last is other
        assert list(map(bits, middle)) == list(map(bits, expected[1:3]))
    assert replays() > 0
    passes.shutdown()


@v03
def test_a_trace_of_torchtitans_profiler_names_kernels_of_programs(
    graph_trainer: GraphTrainer, tmp_path: Path
) -> None:
    """What torchtitan does with each trace that its profiler wrote."""
    graph_trainer.trained("cudagraph")
    known = gravure.kernel_annotations()
    modules = {told.get("module_fqn") for (told,) in known.values()}
    assert modules >= {"layers.0", "layers.1", "loss"}
    number, (told,) = next(iter(known.items()))
    assert {"operator", "source", "entry"} <= set(told)
    path = tmp_path / "rank0_trace.json"
    path.write_text(json.dumps({"traceEvents": [{"args": {"graph node id": number}}, {}]}))
    cudagraph = importlib.import_module(f"{GRAPH_TRAINER}.cudagraph")
    cudagraph.cudagraph_annotate_trace_post_processor().build()(str(path))
    assert json.loads(path.read_text())["traceEvents"] == [
        {"args": {"graph node id": number} | told},
        {},
    ]

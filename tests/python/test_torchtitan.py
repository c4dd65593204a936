"""torchtitan 0.2.x's own code calls the pass, and trains with the same bits as without it.

Skipped where torchtitan, or what its trainer imports, is not installed.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import json
import logging
import os
import subprocess
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gravure
import pytest
import titan_on_cpu
import torch
import torch.distributed as dist
import torch.nn as nn
from gravure_native import library_path
from running import need_library
from titan_assets import write_assets
from titan_model import STEPS, batch, is_installed, llama, loss_of, optimizer_of, replays
from torch.distributed.tensor import distribute_module, init_device_mesh

need_library()


TOOLKIT = "torchtitan.experiments.compiler_toolkit"
v02 = pytest.mark.skipif(
    not is_installed(f"{TOOLKIT}.passes"), reason="torchtitan 0.2.x is not installed"
)
none = pytest.mark.skipif(is_installed("torchtitan"), reason="torchtitan is installed")


# ---- torchtitan 0.2.x: forward and backward come apart


class Toolkit:
    """The compiler toolkit's own functions, in its own order, on one CPU process."""

    def __init__(self) -> None:
        assert importlib.util.find_spec(f"{TOOLKIT}.passes")  # looking imports nothing
        self.mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
        self.dims = types.SimpleNamespace(
            get_mesh=lambda _: self.mesh, pp_enabled=False, fsdp_enabled=False
        )
        with titan_on_cpu.without_a_pool():
            self.passes = importlib.import_module(f"{TOOLKIT}.passes")
        self.utils = importlib.import_module(f"{TOOLKIT}.graph_utils")
        self.inputs = importlib.import_module(f"{TOOLKIT}.common_utils").parallelize_inputs

    def config(self, *arguments: str) -> Any:
        manager = importlib.import_module("torchtitan.config").ConfigManager()
        module = "--job.custom_config_module=gravure.torchtitan"
        return manager.parse_args([module, *arguments])

    def compiled(self, *arguments: str) -> nn.Module:
        config = self.config(*arguments)
        model = distribute_module(llama(), self.mesh)
        # 0.2.1 passes fewer arguments.
        chosen = self.utils.get_compiler_passes_from_config
        given = (model, config, self.dims)[: chosen.__code__.co_argcount]
        forward, backward = self.utils.make_compiler_with_passes(chosen(*given))
        build = functools.partial(
            self.utils.joint_graph_builder, fw_compiler=forward, bw_compiler=backward
        )
        return self.utils.CompiledModule(model, self.dims, build, self.inputs)


@pytest.fixture
def toolkit(plugin: types.ModuleType) -> Iterator[Toolkit]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield Toolkit()
    torch._dynamo.reset()
    dist.destroy_process_group()


def trained(model: nn.Module) -> list[float]:
    optimizer, losses = optimizer_of(model), []
    for step in range(STEPS):
        ids, labels = batch(step)
        loss = loss_of(model(ids), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def accumulated(model: nn.Module) -> list[float]:
    """Two forwards before their backwards, and an evaluation after them."""
    optimizer, losses = optimizer_of(model), []
    for step in range(STEPS):
        ids, labels = batch(step)
        both = [loss_of(model(x), labels) for x in (ids, labels)]
        for loss in both:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            losses += [loss.item() for loss in (*both, loss_of(model(ids), labels))]
    return losses


@v02
@pytest.mark.parametrize("train", [trained, accumulated])
def test_the_toolkit_trains_in_programs(toolkit: Toolkit, train: Callable[..., Any]) -> None:
    expected = train(toolkit.compiled())
    assert not gravure.report().graphs
    model = toolkit.compiled("--compile.passes", "cudagraph")
    assert train(model) == expected
    (graph,) = gravure.report().graphs
    states = graph.programs[0].partitions
    assert set(states) == {"forward", "backward"}
    assert {state for entry in states.values() for state in entry} == {"captured"}
    assert replays() > 0


def saved_by(model: nn.Module) -> int:
    """Tensors that autograd keeps of the whole forward."""
    out = model(batch(0)[0])
    nodes = [out.grad_fn]
    while type(nodes[0]).__name__ not in ("CompiledFunctionBackward", "ToolkitFunctionBackward"):
        nodes = nodes[1:] + [node for node, _ in nodes[0].next_functions if node is not None]
    return len(nodes[0].saved_tensors)


@v02
def test_what_a_forward_saves_passes_autograd_as_one_tensor(toolkit: Toolkit) -> None:
    plain, ours = toolkit.compiled(), toolkit.compiled("--compile.passes", "cudagraph")
    inputs = len(list(plain.parameters())) + 1
    assert saved_by(plain) > 2 * inputs
    for _ in range(3):
        assert saved_by(ours) <= inputs + 2
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        hooked = toolkit.compiled("--compile.passes", "cudagraph")
        assert saved_by(hooked) == saved_by(plain)


@v02
def test_a_late_backward_is_taken(toolkit: Toolkit) -> None:
    """AOTAutograd by itself compiles the backward in the first backward call."""
    from torch._dynamo.backends.common import aot_autograd

    passes = [toolkit.passes.AVAILABLE_COMPILER_PASSES["cudagraph"]]
    forward, backward = toolkit.utils.make_compiler_with_passes(passes)
    backend = aot_autograd(fw_compiler=forward, bw_compiler=backward)
    with torch._functorch.config.patch(enable_autograd_cache=False):
        for train in (trained, accumulated):
            assert train(torch.compile(llama(), backend=backend)) == train(llama())
            assert replays() > 0
            torch._dynamo.reset()


@v02
def test_closing_releases_programs(toolkit: Toolkit, plugin: types.ModuleType) -> None:
    """`CompilerToolkitTrainer.close` drops the module's graph; the process group ends after it."""
    model = toolkit.compiled("--compile.passes", "cudagraph")
    trained(model)
    (graph,) = (weakref.ref(graph) for graph in plugin._passes._graphs)
    assert graph() is not None
    model.joint_graph_module = None
    gc.collect()
    assert graph() is None


@v02
def test_teardown_ends_programs(toolkit: Toolkit, plugin: types.ModuleType) -> None:
    """For trainers that keep their graph: nothing is held, and a further step is refused."""
    model = toolkit.compiled("--compile.passes", "cudagraph")
    trained(model)
    plugin.teardown()
    plugin.teardown()
    with pytest.raises(RuntimeError, match="shut down|shutdown"):
        model(batch(0)[0])


@v02
def test_options_are_checked(plugin: types.ModuleType) -> None:
    with pytest.raises(ValueError, match="did you mean 'host'"):
        plugin.configure(hosts=["aten::mm"])


@v02
def test_what_inductor_compiled_runs_as_it_is(
    plugin: types.ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    compiled = object()
    with caplog.at_level(logging.WARNING, "gravure"):
        assert plugin.cudagraph_pass(compiled, [], is_forward=True) is compiled
    assert "full_inductor_compilation" in caplog.text


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x + x


@v02
def test_a_python_call_runs_as_it_is(
    plugin: types.ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    """`regional_inductor` leaves such calls where it compiled something."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    call = graph.call_function(doubled, (x,))
    x.meta["val"] = call.meta["val"] = torch.empty(3, device="meta")
    graph.output((call,))
    plugin.configure()
    with caplog.at_level(logging.WARNING, "gravure"):
        module = plugin.cudagraph_pass(torch.fx.GraphModule({}, graph), [], is_forward=True)
    assert "doubled" in caplog.text
    assert "runs as it is" in caplog.text
    for _ in range(3):
        (found,) = module([torch.arange(3.0)])
        assert found.tolist() == [0, 2, 4]


# ---- torchtitan 0.2.x: its trainer, on several processes


def train(folder: Path, ranks: int, *arguments: str) -> dict[str, Any]:
    launch = f"-m torch.distributed.run --nproc_per_node={ranks} --rdzv_backend=c10d"
    launch += " --rdzv_endpoint=localhost:0"
    command = [sys.executable, *launch.split(), titan_on_cpu.__file__]
    command += ["--job.config_file", "debug.toml", *arguments]
    losses = folder / "losses.json"
    losses.unlink(missing_ok=True)
    here = Path(__file__).parent
    paths = [str(Path(gravure.__file__).parents[1]), str(here), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "GRAVURE_LIBRARY": str(library_path()),
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_OFFLINE": "1",
        "LOSSES": str(losses),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    run = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
    return json.loads(losses.read_text())


OWN = f"--job.custom_config_module={TOOLKIT}.job_config"
OURS = "--job.custom_config_module=gravure.torchtitan"
trainer = pytest.mark.skipif(
    not all(map(is_installed, ("torchdata", "datasets", "tokenizers", "tensorboard"))),
    reason="what torchtitan's trainer imports is not installed",
)


def same_training(
    folder: Path, ranks: int, arguments: Sequence[str], *ways: Sequence[str]
) -> list[dict[str, Any]]:
    """What each of our `ways` found, where a run without the pass found the same."""
    write_assets(folder)
    expected = train(folder, ranks, OWN, *arguments)
    assert len(expected["losses"]) == 6
    results = []
    for way in ways:
        found = train(folder, ranks, *arguments, *way)
        assert found["losses"] == expected["losses"]
        assert found["parameters"] == expected["parameters"]
        assert found["before"] == 1, "the pass that ran is torchtitan's own"
        assert found["after"] == 0, "the process group ends while programs live"
        results.append(found)
    return results


@v02
@trainer
def test_the_trainer_trains_with_tensor_parallelism(tmp_path: Path) -> None:
    passes = ["--compile.passes", "cudagraph"]
    imported = [OWN, "--experimental.custom_import=gravure.torchtitan"]
    for found in same_training(tmp_path, 2, [], [OURS, *passes], [*imported, *passes]):
        assert found["states"] == {"forward": {"captured": 1}, "backward": {"captured": 1}}
        assert found["replays"] > 0


@v02
@trainer
def test_the_trainer_trains_with_fsdp_in_buckets(tmp_path: Path) -> None:
    """FSDP 2 and TP 2. Buckets are gathered ahead, into buffers that they lie in already."""
    ways = [
        [OURS, "--compile.passes", passes]
        for passes in ("cudagraph", "transformer_block_bucketing,cudagraph")
    ]
    for found in same_training(tmp_path, 4, [], *ways):
        assert found["states"] == {"forward": {"captured": 1}, "backward": {"captured": 1}}
        assert found["replays"] > 0


@v02
@trainer
def test_the_trainer_trains_with_expert_parallelism(tmp_path: Path) -> None:
    """FSDP 2, TP 2 and EP 2: what follows an all-to-all of tokens has no size before the step."""
    arguments = [
        "--model.name=compiler_toolkit.deepseek_v3",
        "--parallelism.expert_parallel_degree=2",
    ]
    (found,) = same_training(tmp_path, 4, arguments, [OURS, "--compile.passes", "cudagraph"])
    for entry in ("forward", "backward"):
        assert list(found["states"][entry]) == ["captured"]
        assert found["states"][entry]["captured"] > 5  # one, and one more for each of five layers
    assert found["replays"] > 0
    blocking = "blocking-collective: _c10d_functional::all_to_all_single"
    assert any(node.startswith(blocking) for node in found["nodes"])


# ---- no torchtitan


@none
def test_a_missing_torchtitan_is_named() -> None:
    with pytest.raises(ImportError, match="install torchtitan 0.2.2"):
        importlib.import_module("gravure.torchtitan")

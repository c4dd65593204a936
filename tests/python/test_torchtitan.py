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
import random
import subprocess
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gravure
import pytest
import titan_on_cpu
import torch
import torch.distributed as dist
import torch.nn as nn
from gravure.runtime import library_path
from running import need_library
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


# ---- torchtitan 0.2.x: its trainer, on two processes with tensor parallelism

_CONFIG = """
[job]
dump_folder = "./outputs"
[metrics]
log_freq = 1
[model]
name = "compiler_toolkit.llama3"
flavor = "debugmodel"
hf_assets_path = "./tests/assets/tokenizer"
[training]
local_batch_size = 2
seq_len = 32
steps = 6
dataset = "c4_test"
[parallelism]
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "none"
[debug]
seed = 0
deterministic = true
"""


def write_assets(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    choose = random.Random(0).choices
    texts = [" ".join(choose("graph plan pool warm tensor loss".split(), k=99)) for _ in range(99)]
    data, tokens = (folder / "tests/assets" / name for name in ("c4_test", "tokenizer"))
    data.mkdir(parents=True)
    tokens.mkdir(parents=True)
    lines = [json.dumps({"text": text, "timestamp": "", "url": ""}) for text in texts]
    (data / "data.json").write_text("\n".join(lines) + "\n")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=400, special_tokens=special)
    )
    tokenizer.save(str(tokens / "tokenizer.json"))
    named = {"bos_token": special[0], "eos_token": special[1]}
    named["tokenizer_class"] = "PreTrainedTokenizerFast"
    (tokens / "tokenizer_config.json").write_text(json.dumps(named))
    (folder / "debug.toml").write_text(_CONFIG)


def train_on_two(folder: Path, *arguments: str) -> dict[str, Any]:
    launch = "-m torch.distributed.run --nproc_per_node=2 --rdzv_backend=c10d"
    launch += " --rdzv_endpoint=localhost:0"
    command = [sys.executable, *launch.split(), titan_on_cpu.__file__]
    command += ["--job.config_file", "debug.toml", *arguments]
    losses = folder / "losses.json"
    losses.unlink(missing_ok=True)
    paths = [str(Path(gravure.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "GRAVURE_LIBRARY": str(library_path()),
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_OFFLINE": "1",
        "LOSSES": str(losses),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    run = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=400
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
    return json.loads(losses.read_text())


@v02
@pytest.mark.skipif(
    not all(map(is_installed, ("torchdata", "datasets", "tokenizers", "tensorboard"))),
    reason="what torchtitan's trainer imports is not installed",
)
def test_the_trainer_trains_with_tensor_parallelism(tmp_path: Path) -> None:
    write_assets(tmp_path)
    config = f"--job.custom_config_module={TOOLKIT}.job_config"
    expected = train_on_two(tmp_path, config)
    ours = "gravure.torchtitan"
    for way in (
        [f"--job.custom_config_module={ours}"],
        [config, f"--experimental.custom_import={ours}"],
    ):
        found = train_on_two(tmp_path, *way, "--compile.passes", "cudagraph")
        assert len(found["losses"]) == 6
        assert found["losses"] == expected["losses"]
        assert found["parameters"] == expected["parameters"]
        assert found["before"] == 1, "the pass that ran is torchtitan's own"
        assert found["after"] == 0, "the process group ends while programs live"


# ---- no torchtitan


@none
def test_a_missing_torchtitan_is_named() -> None:
    with pytest.raises(ImportError, match="install torchtitan 0.2.2"):
        importlib.import_module("gravure.torchtitan")

"""torchtitan 0.3's own trainer, on CPU processes: the same bits as without Gravure's pass.

Skipped where torchtitan 0.3, or what its trainer imports, is not installed. With a torch older than
2.13 the passes that need a newer one are left out of both runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gravure
import pytest
import titan_precompile
import titan_trainer
from gravure.torch_api.private_names import MINOR
from gravure_native import library_path
from running import need_library
from titan_assets import write_assets
from titan_model import is_installed

need_library()

GRAPH_TRAINER = "torchtitan.experiments.graph_trainer"
needed = ("torchdata", "datasets", "tokenizers", "tensorboard", "spmd_types", "torch_checkpointing")
pytestmark = pytest.mark.skipif(
    not is_installed(f"{GRAPH_TRAINER}.trainer") or not all(map(is_installed, needed)),
    reason="torchtitan 0.3, or what its trainer imports, is not installed",
)
OWN_PASS = "cudagraph_pass"
TOO_NEW = [
    "joint_transformer_block_bucketing_reordering_pass",
    "selective_activation_remat_pass",
    "apply_cpu_offload_pass",
]
LLAMA = "graph_trainer_llama3_debugmodel_sdpa"
DEEPSEEK = "graph_trainer_deepseek_v3_debugmodel_sdpa"
FOUR = ("--parallelism.tensor_parallel_degree=2", "--parallelism.data_parallel_shard_degree=2")
ONE = ("--parallelism.data_parallel_shard_degree=1",)
needs_2_15 = pytest.mark.skipif(MINOR < 15, reason="graphs take meshes from torch 2.15 on")
needs_2_13 = pytest.mark.skipif(MINOR < 13, reason="this part of torchtitan's needs torch 2.13")


def run(folder: Path, launch: str, module: str, config: str, *given: str) -> None:
    """One of torchtitan's programs, on the data of `write_assets`."""
    launch += f" --module {module} --config {config} --hf_assets_path tests/assets/tokenizer"
    launch += " --dataloader.dataset_path tests/assets/c4_test --training.local_batch_size 2"
    launch += " --training.seq_len 32 --training.steps 6 --debug.seed 0 --debug.deterministic"
    here = Path(__file__).parent
    paths = [str(Path(gravure.__file__).parents[1]), str(here), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "FOUND": str(folder / "found"),
        "GRAVURE_LIBRARY": str(library_path()),
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    command = [sys.executable, *launch.split(), *given]
    ran = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]


def train(folder: Path, ranks: int, module: str, config: str, *arguments: str) -> list[Any]:
    """What each rank found."""
    given = list(arguments)
    disabled = [] if MINOR >= 13 else list(TOO_NEW)
    if "--without" in given:
        given.remove("--without")
        disabled.append(OWN_PASS)
    if disabled:
        given += ["--compile.disable_passes", ",".join(disabled)]
    launch = f"-m torch.distributed.run --nproc_per_node={ranks} --rdzv_backend=c10d"
    launch += f" --rdzv_endpoint=localhost:0 {titan_trainer.__file__}"
    run(folder, launch, module, config, *given)
    return [json.loads((folder / f"found.{rank}").read_text()) for rank in range(ranks)]


def same_training(
    folder: Path, config: str, *arguments: str, ranks: int = 1, by_module: bool = False
) -> list[Any]:
    """Of our run, where one without the pass found the same losses, gradients and parameters."""
    if not (folder / "tests").exists():
        write_assets(folder)
    expected = train(folder, ranks, "titan_configs", config, *arguments, "--without")
    ours = ["--compile.pass_pipeline", "cudagraph"]
    module = "titan_configs"
    if by_module:
        module, ours = "gravure.torchtitan", []
    found = train(folder, ranks, module, config, *arguments, *ours)
    for a, b in zip(found, expected, strict=True):
        assert b["ran"]["graphs"] == 0
        assert len(b["gradients"]) == 6
        assert len(set(b["losses"])) == len(b["losses"])
        for what in ("losses", "gradients", "parameters"):
            assert a[what] == b[what], what
        assert a["ran"]["replays"] > 0
        assert a["ended"], "a program can still run when the process group is destroyed"
    return found


def test_llama_in_one_partition(tmp_path: Path) -> None:
    """With torchtitan's chunked loss, by `--module gravure.torchtitan` and nothing else."""
    (found,) = same_training(tmp_path, LLAMA, by_module=True)
    assert found["ran"]["states"] == {"step": {"captured": 1}}


def test_accumulated_gradients(tmp_path: Path) -> None:
    """Two microbatches a step: the second's gradients are added to the first's, in place."""
    (found,) = same_training(tmp_path, LLAMA, "--training.global_batch_size=4")
    assert len(found["losses"]) == 12
    assert found["ran"]["states"] == {"step": {"captured": 1}}


def test_gradients_that_are_let_go_of(tmp_path: Path) -> None:
    """With its own graphs off torchtitan sets gradients to None: `.grad` is a result of ours."""
    arguments = ["--training.global_batch_size=4", "--training.disable_cuda_graphs"]
    same_training(tmp_path, LLAMA, *arguments)


@needs_2_13
@pytest.mark.parametrize("policy", ["full", "eager"])
def test_activation_policies(tmp_path: Path, policy: str) -> None:
    (found,) = same_training(tmp_path, LLAMA, f"--compile.memory_policy={policy}")
    assert found["ran"]["states"] == {"step": {"captured": 1}}


def test_two_processes(tmp_path: Path) -> None:
    """FSDP over gloo: each rank's own results, in its own bits."""
    same_training(tmp_path, LLAMA, ranks=2)


@needs_2_13
def test_compiled_as_a_whole(tmp_path: Path) -> None:
    """Inductor's code of the step is one call, captured."""
    (found,) = same_training(tmp_path, LLAMA, "--compile.inductor_compilation=full")
    assert found["ran"]["states"] == {"step": {"captured": 1}}


@needs_2_13
@pytest.mark.parametrize(("ranks", "arguments"), [(2, ()), (4, FOUR)])
def test_compiled_as_a_whole_with_collectives(
    tmp_path: Path, ranks: int, arguments: Sequence[str]
) -> None:
    """The call communicates, FSDP and beside tensor parallelism: captured on all ranks."""
    given = [*arguments, "--compile.inductor_compilation=full"]
    found = same_training(tmp_path, LLAMA, *given, ranks=ranks)
    assert [each["ran"]["states"] for each in found] == [{"step": {"captured": 1}}] * ranks


@needs_2_13
@pytest.mark.parametrize(
    ("ranks", "arguments"), [(4, FOUR), (1, [*ONE, "--compile.inductor_compilation=full"])]
)
def test_precompiled(tmp_path: Path, ranks: int, arguments: Sequence[str]) -> None:
    """By one process for all ranks: without regions, and as the one that all of it is."""
    given = [*arguments, f"--compile.precompile_artifact_dir={tmp_path / 'artifact'}"]
    write_assets(tmp_path)
    run(tmp_path, titan_precompile.__file__, "gravure.torchtitan", LLAMA, *given)
    found = same_training(tmp_path, LLAMA, *given, ranks=ranks)
    assert [each["ran"]["states"] for each in found] == [{"step": {"captured": 1}}] * ranks


@needs_2_13
def test_precompiled_without_us(tmp_path: Path) -> None:
    """Nobody looked at the region before torchtitan's own passes compiled it: its code tells."""
    whole = [*ONE, "--compile.inductor_compilation=full"]
    given = [*whole, f"--compile.precompile_artifact_dir={tmp_path / 'artifact'}"]
    write_assets(tmp_path)
    run(tmp_path, titan_precompile.__file__, "graph_trainer.llama3", LLAMA, *given)
    (artifact,) = (tmp_path / "artifact").iterdir()
    assert b"gravure_carried" not in artifact.read_bytes()
    (found,) = same_training(tmp_path, LLAMA, *given)
    assert found["ran"]["states"] == {"step": {"captured": 1}}


@needs_2_15
@pytest.mark.parametrize("maker", ["graph_trainer.llama3", "gravure.torchtitan"])
def test_precompiled_code_that_communicates(tmp_path: Path, maker: str) -> None:
    """By one process for two ranks, without us or with: the code asks its mesh for groups, and is
    judged for the mesh of each rank. (Beside tensor parallelism torchtitan's own run fails.)"""
    whole = ["--parallelism.data_parallel_shard_degree=2", "--compile.inductor_compilation=full"]
    given = [*whole, f"--compile.precompile_artifact_dir={tmp_path / 'artifact'}"]
    write_assets(tmp_path)
    run(tmp_path, titan_precompile.__file__, maker, LLAMA, *given)
    found = same_training(tmp_path, LLAMA, *given, ranks=2)
    assert [each["ran"]["states"] for each in found] == [{"step": {"captured": 1}}] * 2


@needs_2_13
def test_deepseek(tmp_path: Path) -> None:
    """On the CPU the products of experts read how many tokens each has: these alone are cut out."""
    (found,) = same_training(tmp_path, DEEPSEEK)
    assert all("aten::_grouped_mm" in node for node in found["ran"]["nodes"])
    assert found["ran"]["states"]["step"].keys() == {"captured"}


@needs_2_13
@pytest.mark.parametrize("config", [LLAMA, DEEPSEEK])
def test_four_processes(tmp_path: Path, config: str) -> None:
    """FSDP beside tensor parallelism."""
    same_training(tmp_path, config, *FOUR, ranks=4)


@needs_2_13
def test_traced_on_one_rank_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph asks its mesh for a submesh, and that for the groups of collectives."""
    monkeypatch.setenv("ONE_RANK", "1")
    found = same_training(tmp_path, LLAMA, *FOUR, ranks=4)
    assert [each["ran"]["states"] for each in found] == [{"step": {"captured": 1}}] * 4

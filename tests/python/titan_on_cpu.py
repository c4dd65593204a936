"""Lets torchtitan run where there is no GPU. As a program: the compiler toolkit's trainer.

What is replaced is torchtitan's own and PyTorch's idea of the device, never what calls the passes.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import sys
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.utils._triton

CUDAGRAPH = "torchtitan.experiments.compiler_toolkit.cudagraph"


@contextlib.contextmanager
def without_a_pool() -> Iterator[None]:
    """0.2.x's own cudagraph module captures an empty graph when it is imported."""
    names = ("CUDAGraph", "graph_pool_handle", "Stream", "graph")
    with mock.patch.multiple(torch.cuda, **{name: mock.MagicMock() for name in names}):
        importlib.import_module(CUDAGRAPH)
    yield


def add_names_of_newer_torch() -> None:
    """What torchtitan 0.3.0 imports or calls and torch 2.11 has not; nothing depends on it."""
    import torch.distributed.fsdp as fsdp

    if not hasattr(fsdp, "DataParallelMeshDims"):
        fsdp.DataParallelMeshDims = type("DataParallelMeshDims", (), {})
    offload = "torch._functorch._activation_offloading.offload_ops"
    if offload not in sys.modules and importlib.util.find_spec(offload) is None:
        sys.modules[offload] = mock.MagicMock()
        for name in ("offload", "reload", "wait_tensor"):
            torch.library.define(f"ao::{name}", "(Tensor x) -> Tensor")
    if not hasattr(torch.distributed, "set_timeout"):
        torch.distributed.set_timeout = lambda *_: None
    for name in ("_non_strict_tracing_context", "_patch_engine_backward"):
        if not hasattr(torch.compiler, name):
            setattr(torch.compiler, name, contextlib.nullcontext)


def use_the_cpu() -> None:
    torch._utils._get_available_device_type = lambda: "cpu"
    for name, value in {
        "set_device": None,
        "current_device": 0,
        "reset_peak_memory_stats": None,
        "empty_cache": None,
        "get_device_name": "cpu",
        "memory_stats": {},
    }.items():
        setattr(torch.cpu, name, lambda *_, value=value: value)


def _histogram(values: torch.Tensor, bins: int, min: int, max: int) -> torch.Tensor:  # noqa: A002
    """`torch.histc` of integers, which the CPU has not."""
    return _histc(values.float(), bins=bins, min=min, max=max).to(values.dtype)


_histc = torch.histc
_KERNEL_INPUTS = ("tokens_per_expert_group", "start_index_values", "write_offsets")


def _fill_indices_on_the_cpu() -> None:
    """Triton has no compiler for the CPU: the one kernel of torchtitan's MoE runs as its reference.

    Dynamo takes the kernel into the graph all the same.
    """
    from triton.runtime.jit import JITFunction

    kernels = importlib.import_module("torchtitan.models.moe.kernels")

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        assert kernel is kernels._fill_indices_kernel
        given = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
        tensors = [given[f"{name}_ptr"] for name in _KERNEL_INPUTS]
        counts = [given[name] for name in ("experts_per_rank", "num_ranks")]
        out = given["output_ptr"]
        out.copy_(kernels.fill_indices_cpu(*tensors, *counts, out.numel()))

    JITFunction.run = run
    torch.utils._triton.has_triton = lambda: True


def main() -> None:
    """Trains with torchtitan's own `main`; rank 0 writes what was computed where $LOSSES says."""
    use_the_cpu()
    _fill_indices_on_the_cpu()
    torch.histc = _histogram
    with without_a_pool():
        attention = importlib.import_module("torchtitan.models.attention")
        metrics = importlib.import_module("torchtitan.components.metrics")
        toolkit = importlib.import_module("torchtitan.experiments.compiler_toolkit.train")
        arguments = importlib.import_module("torchtitan.models.deepseek_v3.model.args")
    arguments.has_cuda_capability = lambda *_: True  # grouped products, as on a GPU
    # DTensor knows no sharding of the CPU's flash attention.
    attention.ScaledDotProductAttentionWrapper.sdpa_backends = [torch.nn.attention.SDPBackend.MATH]
    stats = metrics.DeviceMemStats(0, 0, 0, 0, 0, 0)
    metrics.build_device_memory_monitor = lambda: types.SimpleNamespace(
        get_peak_stats=lambda: stats, reset_peak_stats=lambda: None, device_name="cpu"
    )
    losses: list[str] = []
    found: dict[str, Any] = {"losses": losses}

    class Recording(toolkit.CompilerToolkitTrainer):
        def forward_backward_step(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().forward_backward_step(*args, **kwargs)
            losses.append(loss.item().hex())
            return loss

        def close(self) -> None:
            digest = hashlib.sha256()
            for parameter in self.model_parts[0].parameters():
                digest.update(parameter.to_local().detach().numpy().tobytes())
            found["parameters"] = digest.hexdigest()
            gravure = sys.modules.get("gravure")
            graphs = gravure.report().graphs if gravure else []
            found["before"] = len(graphs)
            for program in (p for graph in graphs for p in graph.programs):
                entries = program.partitions.items()
                found["states"] = {entry: Counter(states) for entry, states in entries}
                found["replays"] = program.stats["replays"]
                found["nodes"] = list(program.host_nodes)
            super().close()
            found["after"] = len(gravure.report().graphs) if gravure else 0

    toolkit.main(Recording)
    if os.environ["RANK"] == "0":
        Path(os.environ["LOSSES"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()

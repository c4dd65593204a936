"""torchtitan 0.3's own trainer where there is no GPU, as a program: its arguments are torchtitan's.

`$FOUND.RANK` gets what was computed, in bits, step by step, and what ran. What is replaced is
torchtitan's and PyTorch's idea of the device, never what calls the passes. With `$ONE_RANK` the
step is traced on one rank for all.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import types
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import titan_on_cpu
import torch


def digest(tensors: Iterable[torch.Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        found.update(local.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def programs() -> dict[str, Any]:
    """What Gravure ran so far, if it is there at all."""
    gravure = sys.modules.get("gravure")
    graphs = gravure.report().graphs if gravure else []
    found: dict[str, Any] = {"graphs": len(graphs), "replays": 0, "nodes": [], "states": {}}
    for program in (p for graph in graphs for p in graph.programs):
        found["states"] |= {e: Counter(states) for e, states in program.partitions.items()}
        found["replays"] += program.stats["replays"]
        found["nodes"] += program.host_nodes
    return found


def programs_have_ended() -> bool:
    """A program that was shut down has no partitions left."""
    return not any(any(states) for states in programs()["states"].values())


def record(trainer: type, into: dict[str, Any]) -> None:
    """Losses of each forward, gradients before each clipping, parameters at the end."""
    utils = importlib.import_module("torchtitan.distributed.utils")
    step, close, clip = trainer.forward_backward_step, trainer.close, utils.clip_grad_norm_

    def forward_backward_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        loss = step(self, *args, **kwargs)
        into["losses"].append(loss.item().hex())
        return loss

    def clip_grad_norm_(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        parameters = list(parameters)
        into["gradients"].append(digest(p.grad for p in parameters if p.grad is not None))
        return clip(parameters, *args, **kwargs)

    def close_and_look(self: Any) -> None:
        into["parameters"] = digest(self.model_parts[0].parameters())
        into["ran"] = programs()
        close(self)

    trainer.forward_backward_step = forward_backward_step
    trainer.close = close_and_look
    utils.clip_grad_norm_ = clip_grad_norm_


def trace_for_all_ranks(trainer: type) -> None:
    """Traces as torchtitan's precompilation does, on one rank for all: graphs read their meshes."""
    config = importlib.import_module("torch.compiler.config")
    step = trainer._make_fx_forward_backward_step

    def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
        with config.patch(compile_on_one_rank=self._traced_step is None):
            return step(self, *args, **kwargs)

    trainer._make_fx_forward_backward_step = traced


def use_the_cpu() -> None:
    titan_on_cpu.use_the_cpu()
    titan_on_cpu.add_names_of_newer_torch()
    metrics = importlib.import_module("torchtitan.components.metrics")
    stats = metrics.DeviceMemStats(0, 0, 0, 0, 0, 0)
    metrics.build_device_memory_monitor = lambda: types.SimpleNamespace(
        get_peak_stats=lambda: stats, reset_peak_stats=lambda: None, device_name="cpu"
    )


def main() -> None:
    use_the_cpu()
    found: dict[str, Any] = {"losses": [], "gradients": []}
    trainer = importlib.import_module("torchtitan.experiments.graph_trainer.trainer").GraphTrainer
    record(trainer, found)
    if "ONE_RANK" in os.environ:
        trace_for_all_ranks(trainer)
    importlib.import_module("torchtitan.train").main()
    found["ended"] = programs_have_ended()
    Path(f"{os.environ['FOUND']}.{os.environ['RANK']}").write_text(json.dumps(found))


if __name__ == "__main__":
    main()

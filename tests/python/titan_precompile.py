"""torchtitan 0.3's precompilation, traced with positions as the trainer has them, as a program.

One process makes the artifact for all ranks: the arguments are torchtitan's. Where there is no GPU,
the CPU stands for one.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from typing import Any
from unittest import mock

import titan_on_cpu
import torch

ON_GPU = torch.cuda.is_available()
BATCH = "--training.local_batch_size="


class TitansTorch(types.ModuleType):
    """torch, as the precompilation is to see it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def device(name: str) -> torch.device:
        return torch.device("cpu" if name.startswith("cuda") and not ON_GPU else name)

    @staticmethod
    def arange(start: int, end: int, *, device: torch.device, **_: Any) -> torch.Tensor:
        """Positions, for all rows, as the trainer's data has them.

        torchtitan traces with int32 that are expanded, which Inductor's code insists on.
        """
        rows = [int(word[len(BATCH) :]) for word in sys.argv if word.startswith(BATCH)]
        return torch.arange(start, end, device=device).repeat(*(rows or [2]), 1)


def main() -> None:
    if not ON_GPU:
        titan_on_cpu.use_the_cpu()
        titan_on_cpu.add_names_of_newer_torch()
    precompile = importlib.import_module("torchtitan.experiments.graph_trainer.precompile_main")
    precompile.torch = TitansTorch("torch")
    without_a_gpu = mock.patch.object(torch.cuda, "set_device")
    with contextlib.nullcontext() if ON_GPU else without_a_gpu:
        precompile.main()


if __name__ == "__main__":
    main()

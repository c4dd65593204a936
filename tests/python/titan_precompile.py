"""torchtitan 0.3's precompilation where there is no GPU, as a program.

One process makes the artifact for all ranks: the arguments are torchtitan's.
"""

from __future__ import annotations

import importlib
import types
from typing import Any
from unittest import mock

import titan_on_cpu
import torch


class CpuTorch(types.ModuleType):
    """torch, whose GPU is the CPU."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def device(name: str) -> torch.device:
        return torch.device("cpu" if name.startswith("cuda") else name)

    @staticmethod
    def arange(start: int, end: int, **_: Any) -> torch.Tensor:
        """Positions, for two rows, as the trainer's data has them.

        torchtitan traces with int32 that are expanded, which Inductor's code insists on.
        """
        return torch.arange(start, end).repeat(2, 1)


def main() -> None:
    titan_on_cpu.use_the_cpu()
    titan_on_cpu.add_names_of_newer_torch()
    precompile = importlib.import_module("torchtitan.experiments.graph_trainer.precompile_main")
    precompile.torch = CpuTorch("torch")
    with mock.patch.object(torch.cuda, "set_device"):
        precompile.main()


if __name__ == "__main__":
    main()

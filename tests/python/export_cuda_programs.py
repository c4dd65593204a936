"""Writes small programs from a GPU: they are committed, and run everywhere with devices mapped.

    python3 tests/python/export_cuda_programs.py OUTDIR

writes OUTDIR/cuda_llama, cuda_moe and cuda_checkpointed, each as `step` and as `joint`; the last
one a second time, cuda_checkpointed_eager_rng, whose recomputed dropout repeats eager's own draws.
`expected.pt` of cuda_checkpointed tells nothing about its dropout: paired generators draw other
numbers than eager does.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import export_programs
import models
import torch


def _rms_norm(self: torch.nn.RMSNorm, x: torch.Tensor) -> torch.Tensor:
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return x * scale * self.weight


def use_kernels_of_every_device() -> None:
    """These programs run on the host device too: no kernel that only CUDA has."""
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.nn.RMSNorm.forward = _rms_norm


def main(folder: str) -> None:
    if not torch.cuda.is_available():
        sys.exit("export_cuda_programs.py needs a CUDA device")
    use_kernels_of_every_device()
    device = "cuda:0"
    makers = {
        "llama": partial(models.llama, device),
        "moe": partial(models.moe, device),
        "checkpointed": partial(models.checkpointed, device),
    }
    for name, make in makers.items():
        export_programs.write(f"cuda_{name}", make, Path(folder))
    export_programs.write(
        "cuda_checkpointed_eager_rng", makers["checkpointed"], Path(folder), eager_rng=True
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

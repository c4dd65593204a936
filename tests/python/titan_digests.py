"""For `--experimental.custom_import`: every rank writes a digest of its gradients, step by step.

`$DIGESTS.RANK` gets a line a step: a number for each gradient's local part, in the bits that it has
before it is clipped and used. Two runs whose lines are equal had the same gradients in every bit
(but for one chance in 2^63 each). Only in the first $DIGEST_STEPS steps, where that is set.
"""

from __future__ import annotations

import importlib
import itertools
import os
from typing import Any

import torch
from torchtitan.distributed import utils

if os.environ.get("MESHES_OF_ONE"):
    importlib.import_module("titan_meshes_of_one")

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_LAST = int(os.environ.get("DIGEST_STEPS", 1 << 62))
_steps = itertools.count()
_clip = utils.clip_grad_norm_


def digest(gradient: torch.Tensor) -> torch.Tensor:
    """Of its bits, each weighted by its position, modulo 2^64; on the gradient's device."""
    local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    bits = local.detach().contiguous().view(-1).view(_INTEGERS[local.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=local.device)
    for first in range(0, bits.numel(), 1 << 26):  # what is computed here stays under 2 GiB
        part = bits[first : first + (1 << 26)].long()
        # Odd multipliers, so no change of a single number is lost; Knuth's, to mix the positions.
        positions = torch.arange(first, first + part.numel(), device=local.device)
        total += (part * ((positions * 2654435761) | 1)).sum()
    return total


def _clip_and_tell(parameters: Any, *args: Any, **kwargs: Any) -> Any:
    parameters = list(parameters)
    if next(_steps) < _LAST:
        _tell(parameters)
    return _clip(parameters, *args, **kwargs)


def _tell(parameters: list[Any]) -> None:
    found = [digest(p.grad) for p in parameters if p.grad is not None]
    with open(f"{os.environ['DIGESTS']}.{os.environ['RANK']}", "a") as out:
        out.write(" ".join(map(str, torch.stack(found).tolist())) + "\n")


utils.clip_grad_norm_ = _clip_and_tell

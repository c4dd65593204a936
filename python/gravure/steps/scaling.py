"""A GradScaler's part of an update, on stand-ins that are recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..graphs.recorded_numbers import Unrecorded
from ..torch_api.grad_scaler import scaler_tensors, scaler_twin
from .twin import run_step

Clip = Callable[[], list[Tensor]]


class Scaling:
    """Gradients are unscaled, a step with an infinite one is undone, and the scale follows.

    A fused optimizer's kernels look themselves whether the step is due. Of others the program keeps
    what the step changes, and puts it back: the bits of a step that was skipped, and no wait.
    """

    def __init__(self, scaler: torch.amp.GradScaler, *, unscales: bool) -> None:
        """`unscales`: before what stands between, as a loop that clips does."""
        self._scaler = scaler
        self._unscales = unscales

    def tensors(self) -> list[Tensor]:
        """Its inputs, as they are now."""
        found = scaler_tensors(self._scaler)
        if found is None:
            raise Unrecorded("its GradScaler", "has begun a step of its own", "let it end")
        return found

    def run(
        self, tensors: Sequence[Tensor], twin: Any, changed: Sequence[Tensor], clip: Clip
    ) -> tuple[list[Tensor], bool]:
        """`changed`: what the step of the optimizer `twin` may change. The results of `clip`, and
        whether the step changed tensors alone."""
        outcome: list[bool] = []
        own: Any = twin

        def step() -> None:
            outcome.append(run_step(own))

        def undone(skips: Tensor) -> None:
            before = [tensor.clone() for tensor in changed]
            step()
            is_skipped = skips != 0
            for tensor, former in zip(changed, before, strict=True):
                torch.where(is_skipped, former, tensor, out=tensor)

        scaler = scaler_twin(self._scaler, tensors, undone)
        own.step = step
        results: list[Tensor] = []
        if self._unscales:
            scaler.unscale_(own)
            results = clip()
        scaler.step(own)
        scaler.update()
        return results, all(outcome)


def decides_itself(optimizer: Optimizer) -> bool:
    """Whether its kernels look whether a step is due."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))

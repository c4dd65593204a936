"""Gradients clipped as torch.nn.utils does, on stand-ins that are recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Literal

import torch
from torch import Tensor

from ..graphs.recorded_numbers import Number


@dataclass(frozen=True)
class Clipping:
    """What is done with gradients: "norm" computes their norm, "scale" takes one, of `norm`."""

    by: Literal["clip_norm", "norm", "scale", "value"]
    norm_type: float = 2.0
    foreach: bool = True

    def run(
        self, gradients: Sequence[Tensor], limit: float, norm: Tensor | None = None
    ) -> list[Tensor]:
        """In place; with the norm as the result, where it computes one."""
        if self.by == "value":
            self._by_value(gradients, limit)
            return []
        total = norm
        if total is None:
            utils = torch.nn.utils
            total = utils.get_total_norm(gradients, self.norm_type, False, self.foreach)
        if self.by != "norm":
            # It makes a float of the limit, which only the mark of a recorded number survives.
            given = limit.mark() if isinstance(limit, Number) else limit
            owners = [SimpleNamespace(grad=gradient) for gradient in gradients]
            torch.nn.utils.clip_grads_with_norm_(owners, given, total, self.foreach)  # type: ignore
        return [] if norm is not None else [total]

    def _by_value(self, gradients: Sequence[Tensor], limit: float) -> None:
        """Not by clip_grad_value_, which would negate the float: nobody would see the number."""
        if self.foreach:
            torch.ops.aten._foreach_clamp_min_.Scalar(list(gradients), -limit)
            torch.ops.aten._foreach_clamp_max_.Scalar(list(gradients), limit)
            return
        for gradient in gradients:
            gradient.clamp_(min=-limit, max=limit)

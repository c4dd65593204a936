"""Which calls share eager's casts: those of one autocast that use the same weights.

Eager keeps the cast of a weight until the outermost autocast ends. Where two calls inside of it are
differentiated together, it adds the gradients of both in the lower precision. Each program has
casts of its own, whose gradients autograd adds in float32.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import torch
from torch import Tensor

from ..torch_api.autograd import backward_number
from ..torch_api.compile_lock import one_at_a_time


class CastCall:
    """One call of `owner` (an AutocastCall), the weights that it casts, each by its `id`, and by
    which backward it is differentiated."""

    def __init__(self, owner: Any, weights: frozenset[int]) -> None:
        self.owner = weakref.ref(owner)
        self.weights = weights
        self.written = -1  # how often these weights were written before; -1 if nobody looked
        self.backward = -1  # autograd's number of it; -1 before

    def shares(self, other: CastCall) -> bool:
        return other is not self and not self.weights.isdisjoint(other.weights)

    def differentiated(self, region: CastRegion) -> list[CastCall]:
        """In a backward: this call and those that share casts, if it differentiates some."""
        self.backward = backward_number()
        found = [c for c in region.calls if self.shares(c) and c.backward == self.backward]
        return [*found, self] if found else []


class CastRegion:
    """The calls from one clearing of autocast's cache to the next, which `mark` tells."""

    def __init__(self, mark: Any) -> None:
        self.mark = mark
        self.calls: list[CastCall] = []

    def earlier(self, call: CastCall) -> CastCall | None:
        """The last one before `call` that cast some of its weights."""
        return next(filter(call.shares, reversed(self.calls)), None)


_MOST_CALLS = 256  # of one autocast, that are remembered
_regions: dict[torch.device, CastRegion] = {}
_leaves: dict[torch.device, tuple[Tensor, Tensor]] = {}


def region_of(device: torch.device) -> CastRegion | None:
    """The one that a call is in; None where autocast keeps nothing.

    The mark of a region is autograd's node of a cast that autocast keeps, that of a tensor without
    elements: as long as the cache is not cleared, it is the same one.
    """
    mark = None
    with contextlib.suppress(RuntimeError), torch.enable_grad():
        if device not in _leaves:
            _leaves[device] = _tensors_on(device)
        leaf, factor = _leaves[device]
        grad_fn = torch.addmm(leaf, factor, factor).grad_fn  # it saves nothing for hooks to see
        mark = grad_fn.next_functions[0][0] if grad_fn is not None else None
    if mark is None or type(mark).__name__ == "AccumulateGrad":
        return None
    region = _regions.get(device)
    if region is None or region.mark is not mark:
        region = _regions[device] = CastRegion(mark)
    del region.calls[:-_MOST_CALLS]
    return region


@one_at_a_time
def _tensors_on(device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):
        leaf = torch.empty(0, 0, device=device, requires_grad=True)
        return leaf, torch.empty(0, 0, device=device)

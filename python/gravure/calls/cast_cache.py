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

    def differentiated(self, cache: CastCache) -> list[CastCall]:
        """In a backward: this call and those that share casts, if it differentiates some."""
        self.backward = backward_number()
        found = [c for c in cache.calls if self.shares(c) and c.backward == self.backward]
        return [*found, self] if found else []


class CastCache:
    """One filling of autocast's cache, from one clearing to the next, and the calls in it. `mark`
    tells it from the next one."""

    def __init__(self, mark: Any) -> None:
        self.mark = mark
        self.calls: list[CastCall] = []

    def earlier(self, call: CastCall) -> CastCall | None:
        """The last one before `call` that cast some of its weights."""
        return next(filter(call.shares, reversed(self.calls)), None)


_MOST_CALLS = 256  # of one filling, that are remembered
_caches: dict[torch.device, CastCache] = {}
_leaves: dict[torch.device, tuple[Tensor, Tensor]] = {}


def cache_of(device: torch.device) -> CastCache | None:
    """The one in force; None where autocast keeps nothing.

    Its mark is autograd's node of a cast that autocast keeps, that of a tensor without elements: as
    long as the cache is not cleared, it is the same one.
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
    cache = _caches.get(device)
    if cache is None or cache.mark is not mark:
        cache = _caches[device] = CastCache(mark)
    del cache.calls[:-_MOST_CALLS]
    return cache


@one_at_a_time
def _tensors_on(device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):
        leaf = torch.empty(0, 0, device=device, requires_grad=True)
        return leaf, torch.empty(0, 0, device=device)

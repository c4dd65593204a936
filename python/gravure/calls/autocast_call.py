"""A graph that is called under autocast: its backward runs under autocast where eager's would.

Eager's backward runs under the autocast of the line that calls it, and nobody knows that line when
the graph is compiled. Nor does anybody know which calls share the casts of eager's cache
(cast_cache.py): these run as they are.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.hooks import unserializable_hook

from ..graphs.cached_casts import cast_inputs
from ..graphs.devices import give_back_cache, gpu_of
from ..graphs.graph_as_it_is import as_it_is
from ..library.warm_up_pool import in_warm_up_pool
from ..text.entry_call import picker
from ..torch_api.autograd import at_end_of_backward, times_written
from ..torch_api.dispatch import in_autocast
from ..torch_api.fake_tensors import FakeTensor
from .cast_cache import CastCache, CastCall, cache_of
from .frame import FrameCall, FrameRequest

logger = logging.getLogger("gravure")

_SHARED = (
    "several calls under one autocast use the same weights, and one backward differentiates them: "
    "eager casts each weight once and adds its gradients in the lower precision"
)
_UNSEEN = (
    "{} calls under one autocast, and no backward of theirs so far: how eager's casts are "
    "differentiated is not known; use torch.no_grad() where there is no backward, or an autocast "
    "for each call"
)
_MOST_WATCHED = 8  # calls in one autocast that run as they are


class AutocastCall:
    """Its first calls, all of one autocast, run the graph as it is. They show where the backward is
    called, and whether calls share their casts."""

    def __init__(
        self, behind: FrameCall, inside: FrameRequest, inputs: Sequence[Any], *, bundles: bool
    ) -> None:
        """`behind`: compiled for a backward that is called behind the autocast. `inside`: what is
        compiled, too, once a backward is called inside of it. `inputs`: the graph's."""
        self._behind = behind
        self._inside = inside
        self._graph = as_it_is(inside.graph)
        self._bundles = bundles
        cast = cast_inputs(inside.graph, inputs) if torch.is_autocast_cache_enabled() else []
        self._pick = picker(cast)
        self._device = inputs[cast[0]].device if cast else None
        self._gpu = gpu_of(inputs)
        self._watched: CastCache | None = None  # in which it runs as it is
        # Where it was seen to share casts while its program ran: it is watched in the next cache.
        self._unwatched: CastCache | None = None
        self._keeps_blocks = False  # PyTorch's allocator keeps blocks for calls as it is
        # Whether its first backward was under autocast; empty before. Hooks hold it, and not this.
        self._found: list[bool] = []
        self._chosen: FrameCall | None = None  # once that is known
        self._was_called = False
        self._ran = False  # as a program
        self._unseen = False  # reports say that its calls have no backward
        self._repeats = False  # it shares casts in one autocast, so its backwards are followed
        self._stays = False  # for good as it is, since it shares casts with other calls

    def __call__(self, *args: Any) -> Any:
        if any(isinstance(arg, FakeTensor) for arg in args):
            return self._behind(*args)  # DDPOptimizer runs through what it compiles
        cache = cache_of(self._device) if self._device is not None else None
        if self._unwatched is not None and cache is not self._unwatched:
            self._unwatched, self._was_called = None, False  # it is watched once more
        call = self._enter(cache, args) if cache is not None else None
        if self._stays or not self._was_called or self._is_watched(cache):
            return self._as_it_is(args, cache, call)
        self._watched, self._ran = None, True
        if self._unseen:
            self._unseen = False
            self._behind.passed_by("")
        if self._keeps_blocks:
            self._keeps_blocks = False
            give_back_cache(self._gpu)
        if self._chosen is None:
            if not self._found:
                return self._behind(*args)
            self._chosen = self._choose(args)
        results = self._chosen(*args)
        if self._repeats and cache is not None and call is not None:
            self._follow(results, cache, call)
        return results

    def _enter(self, cache: CastCache, args: Sequence[Any]) -> CastCall:
        """Notes the call, and what it shares with earlier ones of the same autocast."""
        weights = self._pick(args)
        call = CastCall(self, frozenset(map(id, weights)))
        earlier = cache.earlier(call)
        if self._repeats or not self._was_called or earlier is not None:
            call.written = times_written(weights)
        if earlier is not None:
            owner = earlier.owner()
            for each in (self, owner):
                if each is not None and not each._repeats:
                    each._repeats = True
                    if each._watched is not cache:
                        each._unwatched = cache
            if owner is self and -1 < earlier.written != call.written:
                self._stay_as_it_is(
                    "its weights are written inside of one autocast, which keeps eager's casts of "
                    "them from before",
                    "end the autocast before optimizer.step()",
                )
        cache.calls.append(call)
        return call

    def _is_watched(self, cache: CastCache | None) -> bool:
        if cache is None or cache is not self._watched:
            return False
        own = [call for call in cache.calls if call.owner() is self]
        if len(own) <= _MOST_WATCHED:
            return True
        if not self._found and not self._unseen:
            self._unseen = True
            self._behind.passed_by(_UNSEEN.format(_MOST_WATCHED))
        return not self._found

    def _as_it_is(self, args: Sequence[Any], cache: CastCache | None, call: CastCall | None) -> Any:
        if not self._stays and not self._was_called:
            self._watched = cache
        self._was_called = self._keeps_blocks = True
        with in_warm_up_pool(self._gpu):
            results = self._graph(*args)
        self._follow(results, cache, call)
        return results

    def _follow(self, results: Any, cache: CastCache | None, call: CastCall | None) -> None:
        found, gpu = self._found, self._gpu

        @unserializable_hook  # a result may be saved, without a word of this
        def note(_: torch.Tensor) -> None:
            if not found:
                found.append(in_autocast())
                # What an optimizer makes now would lie in blocks of which nobody asks for the rest.
                at_end_of_backward(functools.partial(give_back_cache, gpu))
            if cache is not None and call is not None:
                for each in call.differentiated(cache):
                    owner = each.owner()
                    if owner is not None:
                        owner._stay_as_it_is(
                            _SHARED,
                            "make them in one compiled function, or give "
                            "each call an autocast of its own",
                        )

        for result in results:
            if isinstance(result, torch.Tensor) and result.requires_grad:
                result.register_hook(note)

    def _stay_as_it_is(self, why: str, cure: str) -> None:
        if not self._stays:
            self._stays = True
            cure = f"{cure}, or pass autocast(..., cache_enabled=False)"
            logger.warning(
                "%s: %s: from now on it runs as it is, uncaptured%s; %s",
                self._inside.label,
                why,
                ", and gradients so far may have other bits than eager's" if self._ran else "",
                cure,
            )
            (self._chosen or self._behind).stay_passed_by(f"{why}; {cure}")

    def _choose(self, args: Sequence[Any]) -> FrameCall:
        if not self._found[0]:
            return self._behind
        label = self._inside.label
        logger.info("%s: its backward is called under autocast: a second program", label)
        try:
            made = self._inside.compile_in_first_style(args, symbolic=False, bundles=self._bundles)
            self._behind.replaced()
            return made
        except Exception as error:  # then each backward warns
            logger.debug("%s: not compiled in a call: %r", label, error)
            return self._behind

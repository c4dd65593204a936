"""A graph that is called under autocast, whose backward runs under it or without, as eager's does.

Eager's backward runs under the autocast of the line that calls it, and nobody knows that line when
the graph is compiled.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch

from ..graphs.devices import give_back_cache
from ..torch_api.dispatch import in_autocast
from ..torch_api.fake_tensors import FakeTensor
from .frame import FrameCall, FrameRequest

logger = logging.getLogger("gravure")


class AutocastCall:
    """Its first call runs the graph as it is, which shows where the backward is called."""

    def __init__(self, behind: FrameCall, inside: FrameRequest, *, bundles: bool) -> None:
        """`behind`: whose backward runs without. `inside`: to be compiled if it runs under it."""
        self._behind = behind
        self._inside = inside
        self._bundles = bundles
        self._was_called = False
        self._keeps_cache = False  # PyTorch's allocator, for the first call
        self._found: list[bool] = []  # whether the first call's backward was under autocast
        self._chosen: FrameCall | None = None

    def __call__(self, *args: Any) -> Any:
        if self._chosen is None:
            if not self._was_called and not any(isinstance(arg, FakeTensor) for arg in args):
                return self._as_it_is(args)
            if self._keeps_cache:
                self._keeps_cache = False
                give_back_cache(args)
            if not self._found:
                return self._behind(*args)
            self._chosen = self._choose(args)
        return self._chosen(*args)

    def _as_it_is(self, args: Sequence[Any]) -> Any:
        self._was_called = self._keeps_cache = True
        found = self._found

        def note(_: torch.Tensor) -> None:
            found.append(in_autocast())

        results = self._inside.graph(*args)
        for result in results:
            if isinstance(result, torch.Tensor) and result.requires_grad:
                result.register_hook(note)
        return results

    def _choose(self, args: Sequence[Any]) -> FrameCall:
        if not self._found[0]:
            return self._behind
        label = self._inside.label
        logger.info("%s: its backward is called under autocast: a second program", label)
        try:
            return self._inside.compile_in_first_style(args, symbolic=False, bundles=self._bundles)
        except Exception as error:  # then each backward warns
            logger.debug("%s: not compiled in a call: %r", label, error)
            return self._behind

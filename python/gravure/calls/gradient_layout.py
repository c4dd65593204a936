"""Gradients of a graph's results that lie otherwise in memory than its backward was traced for.

AOTAutograd copies them into the memory format that it traced with; eager reads them as they lie,
and sums in another order. Where the library runs the backward it sees them itself, and mostly has
another one made (given_gradients.py, `LoadedProgram::warnOfLayout`); here they are looked at in
front of AOTAutograd's own function, until the first backward of a graph.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import unserializable_hook

from ..torch_api.aot_metadata import FORMATS, Metadata

logger = logging.getLogger("gravure")

_Hook = Callable[[Tensor | None], None]

_CALLS = 8  # a loop whose backwards never come is not looked at for good
_FORMATS = {number: wanted for wanted, number in FORMATS.items()}


class GradientLayout:
    """Looks at the gradients of the first backward."""

    def __init__(self, label: str, metadata: Metadata | None) -> None:
        self._label = label
        self._formats = _formats(metadata)
        self._calls_left = _CALLS if self._formats else 0
        self._first: object | None = None  # the call whose backward came first
        self._warned = False

    def watch(self, results: Any) -> None:
        """Of one call. Its results are AOTAutograd's, with their history."""
        if not self._calls_left or not isinstance(results, (tuple, list)):
            return
        self._calls_left -= 1
        call = object()
        for i, wanted in self._formats.items():
            if isinstance(results[i], Tensor) and results[i].requires_grad:
                results[i].register_hook(self._look(call, i, wanted))

    def _look(self, call: object, i: int, wanted: torch.memory_format) -> _Hook:
        @unserializable_hook  # a result may be saved, without a word of this
        def look(gradient: Tensor | None) -> None:
            if self._first is None:
                self._first, self._calls_left = call, 0
            if self._first is not call or self._warned or gradient is None:
                return
            if not gradient.is_contiguous(memory_format=wanted):
                self._warned = True
                logger.warning("%s: %s", self._label, _told(i, gradient))

        return look


def _formats(metadata: Metadata | None) -> dict[int, torch.memory_format]:
    """What each gradient is brought into, by its result; none where it is not told apart."""
    if metadata is None or not metadata.are_plain or metadata.written or metadata.bases:
        return {}
    trained = [i for i, result in enumerate(metadata.results) if result.requires_grad]
    formats: Sequence[int | None] = metadata.tangent_formats
    if len(trained) != len(formats):
        return {}
    pairs = zip(trained, formats, strict=True)
    return {i: _FORMATS[wanted] for i, wanted in pairs if wanted in _FORMATS}


def _told(i: int, gradient: Tensor) -> str:
    """As the library's own (differentiable_run.cpp)."""
    sizes, strides = list(gradient.shape), list(gradient.stride())
    return (
        f"the gradient of result {i} has sizes {sizes} and strides {strides}. The backward was "
        "traced for one in the result's memory format, so it is copied first. Eager reads it as it "
        "lies: the last bits of some gradients may be others than eager's. Compute what follows, "
        "as the loss, inside of the compiled function, or take gravure.compile_step"
    )

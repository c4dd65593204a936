"""Programs that clip the gradients of some parameters, in the bits of torch.nn.utils."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import ExportError
from ..graphs.recorded_numbers import Unrecorded
from ..graphs.update_recorder import record
from ..options import CompileOptions
from ..torch_api.dtensors import is_dtensor, layout_of
from .clipping import Clipping
from .loaded_update import LoadedUpdate, SharedMemory
from .recorded_step import refuse_kinds
from .said_once import SaidOnce
from .settings import surroundings

_MOST_PROGRAMS = 16
_MOST_KINDS = 64
_DEVICES = ("cpu", "cuda")  # where torch.nn.utils takes foreach's kernels by itself


class ClipPrograms:
    """One for each set of kinds of gradients; the limit is a number that each call gives."""

    def __init__(self, options: CompileOptions) -> None:
        self.programs = 0
        self._options = options
        self._made: dict[Any, LoadedUpdate | None] = {}  # None: torch.nn.utils' own runs
        self._last: dict[Any, LoadedUpdate] = {}  # by what is done: looked at first
        self._said = SaidOnce()

    def by_norm(
        self,
        parameters: list[Tensor],
        limit: float,
        norm_type: float = 2.0,
        foreach: bool | None = None,
        *,
        error_if_nonfinite: bool = False,
    ) -> Tensor:
        """As clip_grad_norm_ does."""
        choice = foreach is None or foreach
        if error_if_nonfinite:
            norm = self._run(Clipping("norm", norm_type, choice), parameters, limit)
            if norm and not bool(torch.logical_or(norm[0].isnan(), norm[0].isinf())):
                scale = Clipping("scale", norm_type, choice)
                if self._run(scale, parameters, limit, *norm) is not None:
                    return norm[0]
        else:
            norm = self._run(Clipping("clip_norm", norm_type, choice), parameters, limit)
            if norm:
                return norm[0]
        utils = torch.nn.utils
        return utils.clip_grad_norm_(parameters, limit, norm_type, error_if_nonfinite, foreach)

    def by_value(self, parameters: list[Tensor], limit: float, foreach: bool | None = None) -> None:
        """As clip_grad_value_ does."""
        choice = foreach is None or foreach
        if self._run(Clipping("value", foreach=choice), parameters, limit) is None:
            torch.nn.utils.clip_grad_value_(parameters, limit, foreach)

    def _run(
        self, clipping: Clipping, parameters: list[Tensor], limit: float, norm: Tensor | None = None
    ) -> list[Tensor] | None:
        """The program's results; None where nothing has run. `norm`: which "scale" takes."""
        around = clipping, surroundings()
        last = self._last.get(around) if norm is None else None
        if last is not None:
            results = last.run_on(parameters, [limit])
            if results is not None:
                return results
        gradients = [p.grad for p in parameters if p.grad is not None]
        if not gradients:
            return None
        given = [*gradients] if norm is None else [*gradients, norm]
        try:
            kinds = [(type(g), g.dtype, g.device, layout_of(g)) for g in given]
        except RuntimeError as error:  # what is sparse has no strides
            self._say(str(error).partition("\n")[0])
            return None
        key = (*around, *kinds)
        if key not in self._made:
            if len(self._made) >= _MOST_KINDS:
                idle = (known for known, program in self._made.items() if program is None)
                del self._made[next(idle)]
            self._made[key] = self._make(clipping, given, limit, norm)
        program = self._made[key]
        if program is None:
            return None
        if norm is None:
            self._last[around] = program
        try:
            return program.run(given, [limit])
        except SharedMemory as shared:
            self._say(shared.reason)
            return None

    def _make(
        self, clipping: Clipping, given: list[Tensor], limit: float, norm: Tensor | None
    ) -> LoadedUpdate | None:
        count = len(given) if norm is None else len(given) - 1

        def run(fakes: list[Tensor], numbers: list[float]) -> list[Tensor]:
            return clipping.run(fakes[:count], numbers[0], *fakes[count:])

        try:
            if self.programs >= _MOST_PROGRAMS:
                what = "there are gradients of too many kinds"
                raise Unrecorded("clipping", what, "torch.nn.utils' own runs")
            refuse_kinds(given)
            other = next((g.device for g in given if g.device.type not in _DEVICES), None)
            if other is not None:
                what = f"a gradient is on {other}"
                raise Unrecorded("clipping", what, "torch.nn.utils' own runs")
            if len(set(map(id, given))) < len(given):
                raise Unrecorded("clipping", "a gradient comes twice", "torch.nn.utils' own runs")
            update = record(run, given, [limit])
            inputs = [("user_input", f"gradient.{i}", tensor) for i, tensor in enumerate(given)]
            program = LoadedUpdate("clipping", update, inputs, self._options)
            if norm is None and not any(map(is_dtensor, given)):
                program.keep_gradients(given)
        except Exception as error:
            self._say(error.reason if isinstance(error, ExportError) else repr(error))
            return None
        self.programs += 1
        return program

    def _say(self, reason: str) -> None:
        self._said(reason, "gradients are clipped by torch.nn.utils, in eager's kernels: %s")

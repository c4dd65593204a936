"""`gravure.clip_grad_norm_` and `clip_grad_value_`: torch.nn.utils' own, as programs."""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterable

import torch
from torch import Tensor

from .options import CompileOptions
from .steps.clip_programs import ClipPrograms

_PROGRAMS: dict[int, ClipPrograms] = {}  # by the first parameter, for as long as it lives


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """`torch.nn.utils.clip_grad_norm_`, in its bits. Returns the norm, a tensor without dimensions.

    Gradients that no program takes (sparse ones, those of two devices) are clipped by torch's own,
    and a warning says why, once. Raises RuntimeError as that does: with `error_if_nonfinite`, which
    waits for the device, before a gradient has changed.
    """
    found = _listed(parameters)
    if all(p.grad is None for p in found):
        # Of a generator without gradients torch warns, and not of a list.
        given = parameters if isinstance(parameters, types.GeneratorType) else found
        return torch.nn.utils.clip_grad_norm_(
            given, max_norm, norm_type, error_if_nonfinite, foreach
        )
    return _programs(found).by_norm(
        found,
        float(max_norm),
        float(norm_type),
        foreach,
        error_if_nonfinite=error_if_nonfinite,
    )


def clip_grad_value_(
    parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None
) -> None:
    """`torch.nn.utils.clip_grad_value_`, in its bits; what no program takes as above."""
    found = _listed(parameters)
    if any(p.grad is not None for p in found):
        _programs(found).by_value(found, float(clip_value), foreach)


def _listed(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    return [parameters] if isinstance(parameters, Tensor) else list(parameters)


def _programs(parameters: list[Tensor]) -> ClipPrograms:
    first = parameters[0]
    found = _PROGRAMS.get(id(first))
    if found is None:
        found = _PROGRAMS[id(first)] = ClipPrograms(CompileOptions.parse(None))
        weakref.finalize(first, _PROGRAMS.pop, id(first), None)
    return found

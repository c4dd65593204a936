"""Which optimizers a program may end with: those whose step it can know.

A program holds the operators that the optimizer's `step` ran while it was traced. What else a step
of somebody's would do, or do otherwise next time, it would leave out without a word: so it takes
torch.optim's own classes, as they are.
"""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any

import torch
from torch.optim import LBFGS, Optimizer, SparseAdam

from ..errors import ExportError
from ..torch_api.optimizers import has_step_hooks, is_schedulers, note_step

OWN = frozenset(
    kind
    for kind in vars(torch.optim).values()
    if inspect.isclass(kind) and issubclass(kind, Optimizer)
) - {Optimizer, LBFGS, SparseAdam}
_SCALER_SETS = ("grad_scale", "found_inf")  # and the step of some reads
_OUTSIDE = "leave optimizer= out, and call its step() after the compiled step"


def refuse_others(optimizer: Optimizer, name: str) -> None:
    """Raises ExportError for an optimizer whose step is not torch.optim's own, and for a hook."""
    kind = type(optimizer)
    if kind in (LBFGS, SparseAdam):
        what = "calls the loss again" if kind is LBFGS else "takes sparse gradients"
        raise ExportError(name, f"the step of {kind.__name__} {what}", _OUTSIDE)
    if kind not in OWN:
        raise ExportError(
            name,
            f"{kind.__name__} is not one of torch.optim's own optimizers: a program would not know "
            "what its step does besides, and what it wraps or reads",
            _OUTSIDE,
        )
    if not _is_own_step(kind):
        raise ExportError(name, f"somebody replaced {kind.__name__}.step", _OUTSIDE)
    replaced = [key for key in vars(optimizer) if callable(getattr(kind, key, None))]
    for key in replaced:
        if key != "step" or not is_schedulers(vars(optimizer)[key], kind):
            raise ExportError(name, f"somebody replaced the {key} of its optimizer", _OUTSIDE)
    for key in _SCALER_SETS:
        if getattr(optimizer, key, None) is not None:
            raise ExportError(
                name,
                f"its optimizer has a {key}, as GradScaler sets it for one step",
                "call scaler.step(optimizer) after a compiled step without optimizer=",
            )
    if any(group.get("differentiable") for group in (optimizer.defaults, *optimizer.param_groups)):
        raise ExportError(
            name, "its optimizer is differentiable, and a step keeps no graph", "leave that out"
        )
    refuse_hooks(optimizer, name)
    if "step" in replaced:
        note_step(optimizer)


def refuse_hooks(optimizer: Optimizer, name: str) -> None:
    """Raises ExportError if something would have to be called around the step."""
    if has_step_hooks(optimizer):
        raise ExportError(name, "its optimizer has a step hook", f"remove the hook, or {_OUTSIDE}")


def _is_own_step(kind: type[Optimizer]) -> bool:
    """Whether it, and what it is wrapped in, is PyTorch's."""
    step: Any = kind.step
    while isinstance(step, FunctionType):
        if step.__globals__["__name__"].partition(".")[0] != "torch":
            return False
        if not hasattr(step, "__wrapped__"):
            return step.__globals__["__name__"].startswith("torch.optim.")
        step = step.__wrapped__
    return False


def stands_in_the_way(optimizer: Optimizer) -> str | None:
    """Why a program would not know what a step of this optimizer does, now; None if it would.

    A replaced `step` is no reason: who asks was called by it. Hooks run around the program.
    """
    kind = type(optimizer)
    if kind not in OWN:
        if kind is LBFGS:
            return "a closure is called within the step"
        if kind is SparseAdam:
            return "it takes sparse gradients"
        return f"{kind.__name__} is not one of torch.optim's own"
    if not _is_own_step(kind):
        return f"somebody replaced {kind.__name__}.step"
    for key in vars(optimizer):
        if key != "step" and callable(getattr(kind, key, None)):
            return f"somebody replaced its {key}"
    for key in _SCALER_SETS:
        if getattr(optimizer, key, None) is not None:
            return f"it has a {key}, as GradScaler sets it for one step"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return "it is differentiable, and a program keeps no graph"
    return None

"""Whose step a program can know.

A program holds the operators that the optimizer's `step` ran while it was traced. What else a step
of somebody's would do, or do otherwise next time, it would leave out without a word: so it takes
torch.optim's own classes, as they are, and others only where the caller vouches for them.
"""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer, SparseAdam

from ..torch_api.optimizers import is_schedulers_wrapper

OWN = frozenset(
    kind
    for kind in vars(torch.optim).values()
    if inspect.isclass(kind) and issubclass(kind, Optimizer)
) - {Optimizer, LBFGS, SparseAdam}
SCALER_SETS = ("grad_scale", "found_inf")  # attributes that fused steps read


def is_own_step(kind: type[Optimizer]) -> bool:
    """Whether it, and what it is wrapped in, is PyTorch's."""
    step: Any = kind.step
    while isinstance(step, FunctionType):
        if step.__globals__["__name__"].partition(".")[0] != "torch":
            return False
        if not hasattr(step, "__wrapped__"):
            return step.__globals__["__name__"].startswith("torch.optim.")
        step = step.__wrapped__
    return False


def stands_in_the_way(optimizer: Optimizer, *, known: bool = False) -> str | None:
    """Why a program would not know what a step of this optimizer does, now; None if it would.

    A replaced `step` is no reason: who asks was called by it. Hooks run around the program.
    `known`: what a step of its class reads is known, whoever wrote it.
    """
    kind = type(optimizer)
    if not known and kind not in OWN:
        if kind is LBFGS:
            return "a closure is called within the step"
        if kind is SparseAdam:
            return "it takes sparse gradients"
        return f"{kind.__name__} is not one of torch.optim's own"
    if not known and not is_own_step(kind):
        return f"somebody replaced {kind.__name__}.step"
    for key in vars(optimizer):
        if key != "step" and callable(getattr(kind, key, None)):
            return f"somebody replaced its {key}"
    if scaling_of(optimizer) and not getattr(optimizer, "_step_supports_amp_scaling", False):
        return "it has what GradScaler sets for one step, and takes no scaling"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return "it is differentiable, and a program keeps no graph"
    return None


def is_being_captured() -> bool:
    """Whether the caller captures the stream: PyTorch's own step refuses what may not be part of
    that graph, and a program would put numbers of this step into it."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def scaling_of(optimizer: Optimizer) -> dict[str, Tensor]:
    """What a GradScaler has set for the step that it is about to call, and fused kernels read."""
    found = {key: vars(optimizer).get(key) for key in SCALER_SETS}
    return {key: value for key, value in found.items() if value is not None}


def is_replaced(optimizer: Optimizer) -> str | None:
    """A reason, where its `step` is neither the class' own nor the compiled one. A scheduler's
    wrapper, which only notes that the step was called, is none."""
    step = vars(optimizer).get("step")
    function = getattr(step, "__func__", step)
    update = getattr(function, "gravure_update", None)
    if function is None or is_schedulers_wrapper(function, type(optimizer).step):
        return None
    if update is not None and (
        function is update.function or is_schedulers_wrapper(function, update.function)
    ):
        return None
    return "somebody replaced its step"

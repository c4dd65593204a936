"""What torch.optim keeps to itself: hooks around a step, and how it chooses its kernels."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from torch.optim import Optimizer, lr_scheduler

from .private_names import (
    _default_to_fused_or_foreach,
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
)


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Whether something is called around its step. Without it a program would leave that out."""
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
    )


def is_schedulers(step: Any, kind: type[Optimizer]) -> bool:
    """Whether it only notes that the step was called, for a learning rate scheduler's sake.

    Without it an optimizer with a scheduler is refused.
    """
    return (
        isinstance(step, FunctionType)
        and hasattr(step, "_wrapped_by_lr_sched")
        and step.__globals__ is vars(lr_scheduler)
        and getattr(step, "__wrapped__", None) is kind.step
    )


def note_step(optimizer: Optimizer) -> None:
    """Has schedulers find that the step was called. Without it they warn of a wrong order."""
    optimizer._opt_called = True  # type: ignore[attr-defined]


def chooses_foreach(group: dict[str, Any]) -> bool:
    """What eager chooses by the types of the parameters of a group.

    Without it stand-ins are asked, and the program's kernels, and bits, are others than eager's.
    """
    differentiable = group.get("differentiable", False)
    _, foreach = _default_to_fused_or_foreach(group["params"], differentiable, use_fused=False)
    return foreach

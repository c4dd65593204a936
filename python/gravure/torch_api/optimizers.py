"""What torch.optim keeps to itself: hooks around a step, and how it chooses its kernels."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch import Tensor, fx, optim
from torch.optim import Adam, AdamW, Optimizer, lr_scheduler

from .private_names import (
    _default_to_fused_or_foreach,
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    skip_code,
)

_ADAMS = (Adam, AdamW)
# Files of torch.optim's, as a trace names them; not those of averaged models, which run the model.
_FILES = re.compile(
    re.escape('File "' + os.path.dirname(optim.__file__) + os.sep) + "(?!swa_utils|lr_scheduler)"
)


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Whether something is called around its step. Without it a program would leave that out."""
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
    )


def is_initialized(optimizer: Optimizer) -> bool:
    """Whether it has what Optimizer's own __init__ makes, as what wraps another one may not have.
    Without it such a one has no hooks to run."""
    return hasattr(optimizer, "_optimizer_step_pre_hooks")


def is_schedulers_wrapper(step: Any, own: Any) -> bool:
    """Whether it only notes that `own` was called, for a learning rate scheduler's sake.

    Without it an optimizer with a scheduler is refused.
    """
    return (
        isinstance(step, FunctionType)
        and hasattr(step, "_wrapped_by_lr_sched")
        and step.__globals__ is vars(lr_scheduler)
        and getattr(step, "__wrapped__", None) is own
    )


def mark_as_schedulers_wrapper(step: Any) -> None:
    """Has schedulers find a step that calls note_step(). Without it a scheduler that was there
    before warns that nobody called the optimizer."""
    step._wrapped_by_lr_sched = True


def note_step(optimizer: Optimizer) -> None:
    """Has schedulers find that the step was called. Without it they warn of a wrong order."""
    optimizer._opt_called = True  # type: ignore[attr-defined]


def step_name(optimizer: Optimizer) -> str:
    """What profilers call its step. Without it they find another name."""
    return f"Optimizer.step#{type(optimizer).__name__}.step"


def chooses_foreach(kind: type[Optimizer], group: dict[str, Any], taken: list[Tensor]) -> bool:
    """Whether eager takes foreach kernels, by the types of those parameters of a group that have a
    gradient.

    Without it stand-ins are asked, and the program's kernels, and bits, are others than eager's.
    """
    differentiable = group.get("differentiable", False)
    _, foreach = _default_to_fused_or_foreach(taken, differentiable, use_fused=False)
    rate, capturable = group.get("lr"), group.get("capturable", False)
    if issubclass(kind, _ADAMS) and isinstance(rate, Tensor) and not capturable:
        return False  # as they do, for a case that foreach does not have
    return foreach


def can_be_fused(optimizer: Optimizer) -> bool:
    """Whether its class takes `fused=True`."""
    return "fused" in optimizer.defaults


def steps_optimizer(graph: fx.GraphModule) -> bool:
    """Whether a graph of Dynamo's has what an optimizer's step runs, in the way that torch.optim
    takes while it is traced.

    By the lines that its nodes come from. Without it such graphs run, with other bits than eager's.
    """
    return any(_FILES.search(node.meta.get("stack_trace", "")) for node in graph.graph.nodes)


@functools.cache
def leave_functions_alone() -> None:
    """Has Dynamo leave alone what an optimizer's step calls, where that runs as it is. Inside of a
    step that another backend compiles they are traced as ever.

    By skip_code. Without it Dynamo compiles them one by one, in torch.optim's way for tensors.
    """
    for name, module in list(sys.modules.items()):
        if not name.startswith("torch.optim.") or name.endswith(("swa_utils", "lr_scheduler")):
            continue
        for function in vars(module).values():
            while isinstance(function, FunctionType):
                if function.__module__.startswith("torch.optim."):
                    skip_code(function.__code__)
                function = getattr(function, "__wrapped__", None)


def plain_step(kind: type[Optimizer]) -> Callable[..., Any]:
    """Its step without profiler and hooks, which PyTorch wraps the step of each class in.

    Without it hooks run twice, and on stand-ins.
    """
    step: Any = kind.step
    return step.__wrapped__ if has_torchs_hooks(kind) else step


def has_torchs_hooks(kind: type[Optimizer]) -> bool:
    """Whether PyTorch's wrapper is called as its step, and not somebody's around it, who may have
    copied the mark. Without it a step that was replaced is left out."""
    step: Any = kind.step
    names = getattr(step, "__globals__", {})
    return getattr(step, "hooked", False) and names.get("__name__") == "torch.optim.optimizer"


def with_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """The step within profiler and hooks. Without it a compiled optimizer's hooks do not run."""
    return Optimizer.profile_hook_step(step)  # type: ignore[arg-type]

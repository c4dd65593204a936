"""`gravure.compile_optimizer(optimizer)`: its step as a program, in anybody's loop."""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch.optim import Optimizer

from .options import CompileOptions
from .steps.compiled_update import CompiledUpdate, closure_of
from .torch_api.optimizers import (
    has_torchs_hooks,
    is_schedulers_wrapper,
    mark_as_schedulers_wrapper,
    with_hooks,
)

Kind = TypeVar("Kind", bound=Optimizer)

NOT_FOR_OPTIMIZERS = (
    "on_missed",
    "max_shapes",
    "max_modules",
    "codegen",
    "mode",
    "fused_random",
    "regions",
)

# Optimizers of which it was said why their own steps run.
_REFUSED: weakref.WeakSet[Optimizer] = weakref.WeakSet()


def compile_optimizer(
    optimizer: Kind, *, foreign: bool = False, options: Mapping[str, Any] | None = None
) -> Kind:
    """The same optimizer, whose `step()` runs a program of the operators that its own step runs.

    In eager's bits. Numbers of `param_groups` are read at each step, so that schedulers work as
    they are. State, `state_dict`, pickling, `zero_grad` and hooks stay the optimizer's own; groups
    may be added, and parameters may have no gradient in some steps. A copy of it is not compiled.

    A closure is called first, and the program runs behind it. A step that cannot be a program (a
    sparse gradient, a class that is not torch.optim's) is the optimizer's own step, and a warning
    says why, once. Raises TypeError for what is no optimizer, and ValueError for an option that
    there is not.

    `foreign=True` vouches for a class that is not torch.optim's: its step does nothing but compute
    with tensors, and reads nothing but parameters, gradients, state, settings and plain values.
    Where its code shows something else, its own step runs, with a warning that names it. Without
    it the own step of such a class runs, with one warning.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer: expected a torch.optim one, not a {type(optimizer).__name__}")
    for name in NOT_FOR_OPTIMIZERS:
        if name in (options or {}):
            raise ValueError(f"compile_optimizer takes no option {name!r}")
    chosen = CompileOptions.parse(options)
    replaced = vars(optimizer).get("step")
    if hasattr(replaced, "gravure_update"):
        return optimizer
    scheduled = is_schedulers_wrapper(replaced, type(optimizer).step)
    if replaced is not None and not scheduled:
        raise ValueError(
            f"somebody replaced the step of this {type(optimizer).__name__}; compile it before it "
            "is wrapped, and the wrapper will call the compiled step"
        )
    if optimizer in _REFUSED and not foreign:  # a step that is compiled with it asks, too
        return optimizer
    update = CompiledUpdate(chosen, foreign=foreign)
    if not update.knows(optimizer):  # which may have no hooks, as what wraps another one
        update.refuse(optimizer)
        _REFUSED.add(optimizer)
        return optimizer

    def step(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        return update.step(self, *args, **kwargs)

    step.__signature__ = inspect.signature(type(optimizer).step)  # type: ignore[attr-defined]
    hooked = with_hooks(step)

    @functools.wraps(hooked)
    def first(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        known, closure = closure_of(args, kwargs)
        if known and closure is None and update.repeats(self):
            return None
        if not has_torchs_hooks(type(self)):
            return update.leave(self, *args, **kwargs)
        return hooked(self, *args, **kwargs)

    function = torch.compiler.disable(first)  # nobody else's graph takes it in
    function.gravure_update = update
    update.function = function
    if scheduled:
        mark_as_schedulers_wrapper(function)
    optimizer.step = types.MethodType(function, optimizer)  # type: ignore[method-assign]
    return optimizer

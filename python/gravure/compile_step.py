"""`gravure.compile_step(fn)`: forward, loss and backward of a step as one program, at call time."""

from __future__ import annotations

import functools
import logging
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch.optim import Optimizer

from .options import CompileOptions
from .steps.optimizer_step import Settings, StateMissing
from .steps.step_compiler import StepCompiler
from .steps.step_function import step_with

logger = logging.getLogger("gravure")

_NOT_FOR_STEPS = ("on_missed", "max_shapes", "max_modules", "max_in_flight")


def compile_step(
    fn: Callable[..., Any],
    *,
    optimizer: Optimizer | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """`fn` as a step: a call runs forward, loss and backward as one program, without autograd.

    `fn` returns the loss, or a tuple or list that begins with it. The compiled step returns the
    same, detached, and leaves the gradients in `.grad` of every leaf that the loss reaches, added
    to what is there, as `loss.backward()` does: do not call backward yourself. Parameters stay the
    caller's tensors; a replaced one is used from the next call on. A call with arguments of another
    shape compiles another program.

    With `optimizer` a call ends with its step, in the same program: the gradients of its parameters
    are used up inside, and their `.grad` stays None. Parameters and state stay the caller's
    tensors. The first call, and that after a parameter was unfrozen, runs `optimizer.step()`
    itself, which makes the state. A setting that is a number is part of the program: a learning
    rate that changes belongs in a tensor.

    Raises ValueError for an option that there is not; ExportError, at the first call, for a
    function that cannot become a program, and RuntimeError, before anything has run, for a
    parameter with a hook on its gradient.
    """
    if not callable(fn):
        raise TypeError(f"compile_step takes a function or a module, not a {type(fn).__name__}")
    for name in _NOT_FOR_STEPS:
        if name in (options or {}):
            raise ValueError(
                f"compile_step takes no option {name!r}: it makes a program for each shape, and "
                "raises ExportError where it cannot"
            )
    chosen = CompileOptions.parse(options)
    name = getattr(fn, "__name__", type(fn).__name__)
    compiler = StepCompiler(fn, name, chosen, optimizer)
    if optimizer is None:
        step = step_with(fn, name, compiler)
    else:
        step = _with_optimizer(fn, optimizer, options, name, compiler)
    # For gravure.explain and drop_captures.
    step.gravure_step = CompiledStep(fn, options, compiler)  # type: ignore[attr-defined]
    return step


class CompiledStep(NamedTuple):
    """What a compiled step was made of."""

    fn: Callable[..., Any]
    options: Mapping[str, Any] | None
    compiler: StepCompiler


def _with_optimizer(
    fn: Callable[..., Any],
    optimizer: Optimizer,
    options: Mapping[str, Any] | None,
    name: str,
    compiler: StepCompiler,
) -> Callable[..., Any]:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer: expected a torch.optim one, not a {type(optimizer).__name__}")
    settings = Settings(optimizer, name)
    further = step_with(fn, name, compiler)

    def makes_state(*args: Any, **kwargs: Any) -> Any:
        """By a program without the optimizer, which goes again, and its memory with it."""
        for group in optimizer.param_groups:
            if any(p.grad is not None for p in group["params"]):
                raise RuntimeError(
                    "a parameter has a gradient already, which a step with its optimizer would "
                    "not add to; call zero_grad(set_to_none=True) before"
                )
        result = compile_step(fn, options=options)(*args, **kwargs)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return result

    first = True

    def step(*args: Any, **kwargs: Any) -> Any:
        nonlocal first
        number = settings.number()
        if first:
            result = makes_state(*args, **kwargs)
            first = False
            return result
        if number != compiler.settings:
            compiler.settings = number
        try:
            return further(*args, **kwargs)
        except StateMissing:  # for a parameter that was frozen until now; or it was cleared
            return makes_state(*args, **kwargs)

    return functools.update_wrapper(step, fn) if isinstance(fn, types.FunctionType) else step

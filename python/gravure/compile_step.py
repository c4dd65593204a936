"""`gravure.compile_step(fn)`: forward, loss and backward of a step as one program, at call time."""

from __future__ import annotations

import functools
import logging
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch._dynamo
import torch._dynamo.utils as dynamo_utils
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from torch.optim import Optimizer

from .compile_lock import compile_lock
from .errors import ExportError
from .left_out import leaving_out
from .optimizer_step import Settings, StateMissing
from .options import CompileOptions
from .replaced import Scope
from .static_sizes import static_sizes
from .step_call import OtherTraining
from .step_compiler import StepCompiler, mark_loss
from .trace import refusal, silent_functions

logger = logging.getLogger("gravure")

_NOT_FOR_STEPS = ("on_missed", "max_shapes", "max_modules")


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


def step_with(fn: Callable[..., Any], name: str, compiler: StepCompiler) -> Callable[..., Any]:
    """`fn` under Dynamo, its loss marked, with `compiler` as backend."""

    def call(*args: Any, **kwargs: Any) -> Any:
        # Dynamo compiles anew for other numbers.
        if compiler.settings < 0 or compiler.training < 0:
            return None
        result = fn(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            return mark_loss(result)
        if isinstance(result, tuple) and isinstance(result[0], torch.Tensor):
            return (mark_loss(result[0]), *result[1:])
        if isinstance(result, list) and isinstance(result[0], torch.Tensor):
            return [mark_loss(result[0]), *result[1:]]
        return result

    # A code object of its own: Dynamo keeps what it compiled by code object.
    code = call.__code__.replace()
    fresh = types.FunctionType(code, call.__globals__, "call", None, call.__closure__)
    compiler.scope = Scope(fn, call.__globals__)
    compiled = torch.compile(fresh, backend=compiler.backend(), fullgraph=True)

    def step(*args: Any, **kwargs: Any) -> Any:
        try:
            return once(args, kwargs)
        except OtherTraining as other:
            compiler.train(other.trained)
            return once(args, kwargs)

    def once(args: Any, kwargs: Any) -> Any:
        try:
            with static_sizes:
                result = compiled(*args, **kwargs)
        except FailOnRecompileLimitHit as error:
            raise ExportError(
                name,
                f"it was called with more than {torch._dynamo.config.recompile_limit} kinds of "
                "arguments" + (" or settings of its optimizer" if compiler.optimizer else ""),
                ("make a learning rate that changes a tensor, " if compiler.optimizer else "")
                + "pad to fewer shapes, or raise torch._dynamo.config.recompile_limit",
            ) from error
        except TorchDynamoException:
            result = _again(compiled, args, kwargs, name)
        if not compiler.programs:
            raise ExportError(name, "it computes nothing with tensors", "return a loss")
        return result

    return functools.update_wrapper(step, fn) if isinstance(fn, types.FunctionType) else step


def _again(compiled: Callable[..., Any], args: Any, kwargs: Any, name: str) -> Any:
    """Compiles with the settings that export traces with: only where it must, they cost time."""
    settings = {"allow_rnn": True, "ignore_logging_functions": silent_functions()}
    unlogged = mock.patch.object(dynamo_utils, "_get_dynamo_config_for_logging", str)
    try:
        with compile_lock, torch._dynamo.config.patch(settings), unlogged, leaving_out() as silent:
            with static_sizes:
                result = compiled(*args, **kwargs)
        if silent:
            logger.warning(
                "%s: its program leaves out what it says to people: %s; return what there is to "
                "say, and say it after the step",
                name,
                ", ".join(silent),
            )
        return result
    except TorchDynamoException as error:
        inner = getattr(error, "inner_exception", None)
        if type(inner) is RuntimeError:  # the library's words say what to do
            raise inner from None
        raise refusal(error, name) from error

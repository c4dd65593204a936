"""A step under Dynamo: its loss marked, its errors ours."""

from __future__ import annotations

import functools
import logging
import types
from collections.abc import Callable
from typing import Any

import torch

from ..errors import ExportError
from ..graphs.codegen import make_ready
from ..torch_api.compile_lock import compile_lock
from ..torch_api.compiled_frames import CompiledFrames
from ..torch_api.discarded_output import discarding_output
from ..torch_api.dynamo import (
    FailOnRecompileLimitHit,
    TorchDynamoException,
    recompile_limit,
    tracing_settings,
)
from ..torch_api.dynamo_errors import refusal
from ..torch_api.guard_checks import Scope
from ..torch_api.step_settings import step_settings
from .seen_arguments import SeenArguments
from .step_call import OtherState
from .step_compiler import StepCompiler, mark_loss

logger = logging.getLogger("gravure")


def step_with(fn: Callable[..., Any], name: str, compiler: StepCompiler) -> Callable[..., Any]:
    """`fn` under Dynamo, its loss marked, with `compiler` as backend.

    It takes one argument more than `fn`, the first: a scaler's factor, by which the loss is
    multiplied before it is differentiated (it is returned as it is), or None.
    """

    def call(scale: Any, /, *args: Any, **kwargs: Any) -> Any:
        # Dynamo compiles anew for other numbers.
        if compiler.choice < 0 or compiler.state < 0:
            return None
        result = fn(*args, **kwargs)
        loss = result[0] if isinstance(result, (tuple, list)) and len(result) > 0 else result
        if not isinstance(loss, torch.Tensor):
            return result if scale is None else (None, result)  # refused, since nothing is marked
        if scale is not None:
            return mark_loss(loss * scale), result
        if isinstance(result, torch.Tensor):
            return mark_loss(result)
        if isinstance(result, tuple):
            marked = (mark_loss(loss), *result[1:])
            return type(result)(*marked) if hasattr(result, "_make") else marked
        return [mark_loss(loss), *result[1:]]

    # A code object of its own: Dynamo keeps what it compiled by code object.
    code = call.__code__.replace()
    fresh = types.FunctionType(code, call.__globals__, "call", None, call.__closure__)
    compiler.scope = Scope(fn, call.__globals__)
    compiled = torch.compile(fresh, backend=compiler.backend(), fullgraph=True)
    frames = CompiledFrames(fresh)

    seen = SeenArguments(fn)

    def step(scale: Any, /, *args: Any, **kwargs: Any) -> Any:
        args = (scale, *args)
        try:
            result = once(args, kwargs)
        except OtherState as other:
            compiler.go_by(other.state, other.former)
            try:
                result = once(args, kwargs)
            except OtherState as still:
                compiler.go_by(still.state, anew=True)
                result = once(args, kwargs)
        return result if scale is None else result[1]

    def once(args: Any, kwargs: Any) -> Any:
        run = frames.find({"scale": args[0], "args": args[1:], "kwargs": kwargs})
        if run is not None:
            return run(*args, **kwargs)
        known = compiler.programs
        if not known:
            make_ready(compiler.options)
        try:
            with step_settings:
                result = compiled(*args, **kwargs)
        except FailOnRecompileLimitHit as error:
            further = " or settings of its optimizer" if compiler.ending else ""
            reason, cure = seen.too_many(args[1:], kwargs, recompile_limit(), further)
            raise ExportError(name, reason, cure) from error
        except TorchDynamoException:
            result = _again(compiled, args, kwargs, name)
        if compiler.programs != known:
            seen.note(args[1:], kwargs)
        if not compiler.programs:
            raise ExportError(name, "it computes nothing with tensors", "return a loss")
        frames.note()
        return result

    return step


def as_named(step: Callable[..., Any], fn: Callable[..., Any]) -> Callable[..., Any]:
    """`step` under the name of `fn`."""
    return functools.update_wrapper(step, fn) if isinstance(fn, types.FunctionType) else step


def _again(compiled: Callable[..., Any], args: Any, kwargs: Any, name: str) -> Any:
    """Compiles with the settings that export traces with: only where it must, they cost time."""
    try:
        with compile_lock, tracing_settings(), discarding_output() as silent:
            with step_settings:
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

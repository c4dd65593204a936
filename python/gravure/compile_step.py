"""`gravure.compile_step(fn)`: forward, loss and backward of a step as one program, at call time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.optim import LBFGS, Optimizer, SparseAdam
from torch.optim.lr_scheduler import ReduceLROnPlateau

from .compile_optimizer import NOT_FOR_OPTIMIZERS, compile_optimizer
from .errors import ExportError
from .graphs.codegen import load_compiler
from .options import CompileOptions
from .steps.clip_programs import ClipPrograms
from .steps.clipping import Clipping
from .steps.optimizer_step import Ending
from .steps.step_compiler import StepCompiler
from .steps.step_function import as_named, step_with
from .steps.training_loop import TrainingLoop

_NOT_FOR_STEPS = ("on_missed", "max_shapes", "max_modules", "max_in_flight")


def compile_step(
    fn: Callable[..., Any],
    *,
    optimizer: Optimizer | None = None,
    scheduler: Any = None,
    max_norm: float | None = None,
    clip_value: float | None = None,
    scaler: torch.amp.GradScaler | None = None,
    accumulate: int = 1,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """`fn` as a step: a call runs forward, loss and backward as one program, without autograd.

    `fn` returns the loss, or a tuple or list that begins with it. The compiled step returns the
    same, detached, and leaves the gradients in `.grad` of every leaf that the loss reaches, added
    to what is there, as `loss.backward()` does: do not call backward yourself. Parameters stay the
    caller's tensors; a replaced one is used from the next call on. A call with arguments of another
    shape compiles another program.

    With `optimizer` a call does what this loop does, in its bits:

        loss = fn(*args)
        scaler.scale(loss).backward()              # with a scaler
        # and, in each `accumulate`-th call:
        scaler.unscale_(optimizer)                 # with a scaler, and clipping
        clip_grad_norm_(parameters, max_norm)      # the optimizer's, in its order
        scaler.step(optimizer)                     # or optimizer.step()
        scaler.update()
        optimizer.zero_grad()
        scheduler.step()

    in one program; with accumulation in two, the last call of a cycle and the others. Numbers of
    the optimizer's groups are read at each step. The first call, and those for which the step
    cannot be in the program, run `optimizer.step()` behind it; a warning says why, once. So do all
    with a scaler where the optimizer counts its steps on the host (Adam without `fused=True`).
    `optimizer` is compiled by itself, too (`compile_optimizer`). The step has two functions:
    `step.update()` ends a cycle of accumulation early, `step.grad_norm()` is the norm before the
    last clipping.

    Raises ValueError for an option that there is not, and for arguments that do not go together;
    ExportError, at the first call, for a function that cannot become a program, and RuntimeError,
    before anything has run, for a parameter with a hook on its gradient.
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
    load_compiler(chosen)
    name = getattr(fn, "__name__", type(fn).__name__)
    if optimizer is None:
        _refuse_without_optimizer(scheduler, max_norm, clip_value, scaler, accumulate)
        compiler = StepCompiler(fn, name, chosen)
        inner = step_with(fn, name, compiler)

        def plain(*args: Any, **kwargs: Any) -> Any:
            return inner(None, *args, **kwargs)

        step = as_named(plain, fn)
        step.gravure_step = CompiledStep(fn, options, lambda: [compiler], None)  # type: ignore[attr-defined]
        return step
    clipping, limit = _clipping(max_norm, clip_value)
    _check(optimizer, name, scheduler, scaler, accumulate)
    ending = Ending(optimizer, clipping, limit, accumulates=accumulate > 1)
    with contextlib.suppress(ValueError):  # somebody replaced its step: that is called
        compile_optimizer(optimizer, options=_for_updates(options))
    loop = TrainingLoop(
        fn, name, chosen, ending, ClipPrograms(chosen), scheduler, scaler, accumulate
    )

    def whole(*args: Any, **kwargs: Any) -> Any:
        return loop(*args, **kwargs)

    step = as_named(whole, fn)
    step.update = loop.update  # type: ignore[attr-defined]
    step.grad_norm = loop.grad_norm  # type: ignore[attr-defined]
    step.gravure_step = CompiledStep(fn, options, loop.compilers, optimizer)  # type: ignore[attr-defined]
    return step


class CompiledStep(NamedTuple):
    """What a compiled step was made of, for gravure.explain and drop_captures."""

    fn: Callable[..., Any]
    options: Mapping[str, Any] | None
    compilers: Callable[[], list[StepCompiler]]
    optimizer: Any


def _for_updates(options: Mapping[str, Any] | None) -> dict[str, Any]:
    return {k: v for k, v in (options or {}).items() if k not in (*NOT_FOR_OPTIMIZERS, "results")}


def _refuse_without_optimizer(
    scheduler: Any, max_norm: Any, clip_value: Any, scaler: Any, accumulate: int
) -> None:
    given = {
        "scheduler": scheduler,
        "max_norm": max_norm,
        "clip_value": clip_value,
        "scaler": scaler,
        "accumulate": None if accumulate == 1 else accumulate,
    }
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name}= needs optimizer=: it is about the update")


def _clipping(max_norm: Any, clip_value: Any) -> tuple[Clipping | None, float]:
    if max_norm is not None and clip_value is not None:
        raise ValueError("max_norm= and clip_value=: gradients are clipped by one of them")
    for name, value in (("max_norm", max_norm), ("clip_value", clip_value)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name}: expected a number, not a {type(value).__name__}")
        if not value > 0:
            raise ValueError(f"{name}: expected more than 0, found {value}")
        return Clipping("clip_norm" if name == "max_norm" else "value"), float(value)
    return None, 0.0


def _check(optimizer: Any, name: str, scheduler: Any, scaler: Any, accumulate: int) -> None:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer: expected a torch.optim one, not a {type(optimizer).__name__}")
    if isinstance(optimizer, (LBFGS, SparseAdam)):
        what = "calls the loss again" if isinstance(optimizer, LBFGS) else "takes sparse gradients"
        raise ExportError(
            name,
            f"the step of {type(optimizer).__name__} {what}",
            "leave optimizer= out, and call its step() after the compiled step",
        )
    if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
        raise ValueError(f"accumulate: expected a whole number of at least 1, found {accumulate!r}")
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ValueError(
            "scheduler: a ReduceLROnPlateau takes a metric; leave scheduler= out, and call its "
            "step(metric) yourself"
        )
    if scheduler is not None and not callable(getattr(scheduler, "step", None)):
        raise TypeError(f"scheduler: expected what has step(), not a {type(scheduler).__name__}")
    of = getattr(scheduler, "optimizer", optimizer)
    if scheduler is not None and of is not optimizer:
        raise ValueError(
            f"scheduler: it is for another optimizer, a {type(of).__name__}, whose rates it would "
            "change"
        )
    if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
        raise TypeError(f"scaler: expected a torch.amp.GradScaler, not a {type(scaler).__name__}")

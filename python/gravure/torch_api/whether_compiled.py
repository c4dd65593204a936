"""What code is told that asks whether it is compiled: no, as eager's is.

Libraries ask (`torch.compiler.is_compiling`), and take another way while they are traced, with
other kernels and other bits. Dynamo's table of answers is one for all backends, so each answer
looks who asks, and for whom: PyTorch's own code is told the truth, which its ways rely on, and so
is everybody in what another backend compiles, or Gravure with the option `is_compiling`. What is
not traced by Dynamo, but by AOTAutograd or `make_fx`, is told so by a flag, `compiler`'s
`_is_compiling_flag`: from 2.13 on Dynamo sets it while it compiles, and an optimizer's step would
be traced in its way for tensors, with other bits (test_optimizer_step.py).

Private: `TorchInGraphFunctionVariable` has Dynamo's table of answers, `SkipFunctionVariable` stands
for a function that it does not look into, `ConstantVariable` for an answer. Without them code is
told that it is compiled, and a warning says so once.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import traceback
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any
from unittest import mock

import torch

from .private_names import (
    ConstantVariable,
    MissingName,
    SkipFunctionVariable,
    TorchInGraphFunctionVariable,
    compiler,
)

logger = logging.getLogger("gravure")

# Answered under every name that they are imported by: Dynamo knows them by themselves.
_QUESTIONS = (
    "compiler.is_compiling",
    "compiler.is_dynamo_compiling",
    "compiler.is_exporting",
    "_dynamo.external_utils.is_compiling",
    "_utils.is_compiling",
)
# Asked next by code that is told no. Dynamo has no answer to the first, and does not look into the
# second: it would end its graph at either.
_UNANSWERED = ("cuda.graphs.is_current_stream_capturing",)
_SKIPPED = ("xpu.graphs.is_current_stream_capturing",)

# The truth for PyTorch, and for this package, which is traced where a toolkit's graph is.
_TOLD_THE_TRUTH = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep
    for path in (torch.__file__, os.path.dirname(__file__))
)
# Told the truth, too: what asks for the tracer's sake, where it does the same in another way. A
# ContextVar cannot be traced.
_FOR_THE_TRACER = (os.path.join("transformers", "utils", "output_capturing.py"),)
_CALLERS = 3  # of a question: a library gives it a name or two of its own

REMEDY = (
    "have the code, which asks whether it is compiled, told so by the option is_compiling=True: it "
    "may take another way then, with other bits than eager's"
)

_asking: set[CodeType] = set()  # functions that were told no


def answer_as_eager(runs_as_eager: Callable[[Any], bool]) -> None:
    """Has Dynamo answer no where `runs_as_eager` says that code is told so for this backend."""
    try:
        handlers = TorchInGraphFunctionVariable._get_handlers()
        changed = {}
        for question in map(_function, _QUESTIONS):
            changed[question] = _answer(handlers[question], runs_as_eager)
        for question in map(_function, _UNANSWERED):
            changed[question] = _answer(handlers.get(question), runs_as_eager)
        handlers.update(changed)
        skipped = {_function(name) for name in _SKIPPED}
        SkipFunctionVariable.call_function = _answer_skipped(
            SkipFunctionVariable.call_function, skipped, runs_as_eager
        )
    except (AttributeError, KeyError, TypeError, MissingName) as error:
        _say_unknown(error)


@contextlib.contextmanager
def not_compiling() -> Iterator[None]:
    """Within, what Dynamo does not trace is told so. For who holds the lock on compiling."""
    with mock.patch.object(compiler, "_is_compiling_flag", False):
        yield


def asks(frame: traceback.FrameSummary) -> bool:
    """Whether the function of this frame, or one which it calls, asked and was told no."""
    return any(
        code.co_filename == frame.filename
        and code.co_name == frame.name
        and frame.lineno in (line for _, _, line in code.co_lines())
        for code in _asking
    )


def _function(name: str) -> Callable[..., Any]:
    return functools.reduce(getattr, name.split("."), torch)


def _answer(
    truth: Callable[..., Any] | None, runs_as_eager: Callable[[Any], bool]
) -> Callable[..., Any]:
    def answer(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_told(tx, runs_as_eager):
            return ConstantVariable.create(False)
        return truth(self, tx, *args, **kwargs) if truth is not None else None

    return answer


def _answer_skipped(
    call_function: Callable[..., Any],
    skipped: set[Callable[..., Any]],
    runs_as_eager: Callable[[Any], bool],
) -> Callable[..., Any]:
    @functools.wraps(call_function)
    def call(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if self.value in skipped and _is_told(tx, runs_as_eager):
            return ConstantVariable.create(False)
        return call_function(self, tx, args, kwargs)

    return call


def _is_told(tx: Any, runs_as_eager: Callable[[Any], bool]) -> bool:
    """Whether who asks in Dynamo's translator `tx` is told as eager tells; and notes who it is."""
    try:
        backend = tx.output.compiler_fn
        asking = [tx.f_code]
        while len(asking) < _CALLERS and (tx := tx.parent) is not None:
            asking.append(tx.f_code)
    except AttributeError as error:
        _say_unknown(error)
        return False
    if asking[0].co_filename.startswith(_TOLD_THE_TRUTH) or not runs_as_eager(backend):
        return False
    if any(code.co_filename.endswith(_FOR_THE_TRACER) for code in asking):
        return False
    _asking.update(asking)
    return True


@functools.cache
def _say_once() -> None:
    logger.warning(
        "this PyTorch answers in another way than expected what asks whether it is compiled: it "
        "is told so, and may take another way with other bits than eager's"
    )


def _say_unknown(error: Exception) -> None:
    logger.debug("whether_compiled: %r", error)
    _say_once()

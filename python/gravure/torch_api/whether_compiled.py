"""What code is told that asks whether it is compiled: no, as eager's is.

Libraries ask (`torch.compiler.is_compiling`), and take another way while they are traced, with
other kernels and other bits. Dynamo's table of answers is one for all backends, so each answer
looks who asks, and for whom: PyTorch's own code is told the truth, which its ways rely on, and so
is everybody in what another backend compiles, or Gravure with the option `is_compiling`. What is
not traced by Dynamo, but by AOTAutograd or `make_fx`, is told so by a flag, `compiler`'s
`_is_compiling_flag`: from 2.13 on Dynamo sets it while it compiles, and an optimizer's step would
be traced in its way for tensors, with other bits (test_optimizer_step.py).

Eager's way may branch on data, which ends a graph. Where eager's bits are not promised, code is
told so only until it does: Dynamo then traces the function anew, and code is told the truth.

Private: `TorchInGraphFunctionVariable` has Dynamo's table of answers, `SkipFunctionVariable` stands
for a function that it does not look into, `ConstantVariable` for an answer. Without them code is
told that it is compiled, and a warning says so once. `UnspecializeRestartAnalysis` has Dynamo trace
anew without what it learnt; without it the graph ends at the branch.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import logging
import os
import traceback
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any
from unittest import mock

import torch

from .dynamo import compile_number
from .private_names import (
    ConstantVariable,
    MissingName,
    SkipFunctionVariable,
    TorchInGraphFunctionVariable,
    UnspecializeRestartAnalysis,
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


class Answer(enum.Enum):
    """What code is told that asks, by the backend that it is traced for."""

    TRUTH = "that it is compiled"
    EAGERS = "what eager tells it"
    EAGERS_UNTIL_IT_BRANCHES = "what eager tells it, and the truth once that way branches on data"


_asking: set[CodeType] = set()  # functions that were told no
# Functions that are traced with the truth, since eager's way branched on data: where.
_branching: dict[CodeType, tuple[str, int]] = {}
# The last of them that asked, by the number of the compilation. Dynamo compiles one at a time.
_told: dict[str, tuple[str, int]] = {}


def answer_as_eager(answer_for: Callable[[Any], Answer]) -> None:
    """Has Dynamo answer what `answer_for` says of a backend."""
    try:
        handlers = TorchInGraphFunctionVariable._get_handlers()
        changed = {}
        for question in map(_function, _QUESTIONS):
            changed[question] = _answer(handlers[question], answer_for)
        for question in map(_function, _UNANSWERED):
            changed[question] = _answer(handlers.get(question), answer_for)
        handlers.update(changed)
        skipped = {_function(name) for name in _SKIPPED}
        SkipFunctionVariable.call_function = _answer_skipped(
            SkipFunctionVariable.call_function, skipped, answer_for
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
    truth: Callable[..., Any] | None, answer_for: Callable[[Any], Answer]
) -> Callable[..., Any]:
    def answer(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_told_no(tx, answer_for):
            return ConstantVariable.create(False)
        return truth(self, tx, *args, **kwargs) if truth is not None else None

    return answer


def _answer_skipped(
    call_function: Callable[..., Any],
    skipped: set[Callable[..., Any]],
    answer_for: Callable[[Any], Answer],
) -> Callable[..., Any]:
    @functools.wraps(call_function)
    def call(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if self.value in skipped and _is_told_no(tx, answer_for):
            return ConstantVariable.create(False)
        return call_function(self, tx, args, kwargs)

    return call


def trace_with_the_truth(tx: Any, answer_for: Callable[[Any], Answer]) -> None:
    """At a branch on data in Dynamo's translator `tx`: has the function traced anew, with the
    truth, where what branches was told no and need not be."""
    try:
        root = tx.output.root_tx.f_code
        if tx.f_code not in _asking or root in _branching:
            return
        if answer_for(tx.output.compiler_fn) is not Answer.EAGERS_UNTIL_IT_BRANCHES:
            return
        again = UnspecializeRestartAnalysis(restart_reason="a branch of code that asked")
    except (AttributeError, TypeError, MissingName) as error:  # then the graph ends here
        logger.debug("whether_compiled: %r", error)
        return
    _branching[root] = (tx.f_code.co_filename, tx.lineno)
    raise again


def told_the_truth_for() -> tuple[str, int] | None:
    """In a backend's call: file and line of the branch on data for which code of this graph was
    told that it is compiled. None: it was not, or by the option."""
    return _told.pop(compile_number(), None)


def _is_told_no(tx: Any, answer_for: Callable[[Any], Answer]) -> bool:
    """Whether who asks in Dynamo's translator `tx` is told as eager tells; and notes who it is."""
    try:
        backend, root = tx.output.compiler_fn, tx.output.root_tx.f_code
        asking = [tx.f_code]
        while len(asking) < _CALLERS and (tx := tx.parent) is not None:
            asking.append(tx.f_code)
    except AttributeError as error:
        _say_unknown(error)
        return False
    if asking[0].co_filename.startswith(_TOLD_THE_TRUTH):
        return False
    if any(code.co_filename.endswith(_FOR_THE_TRACER) for code in asking):
        return False
    answer = answer_for(backend)
    if answer is Answer.TRUTH:
        return False
    if answer is Answer.EAGERS_UNTIL_IT_BRANCHES and root in _branching:
        _told.clear()
        _told[compile_number()] = _branching[root]
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

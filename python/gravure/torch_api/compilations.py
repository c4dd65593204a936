"""When Dynamo begins and ends to compile a function for us: what takes long is shown.

Private: `callback_handler`, which calls back at both, and the variables of the function that does:
`compiler_fn`, the backend, and `code`. Without them nothing is shown while Dynamo traces.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

from . import private_names

_DEEPEST = 12  # frames between a callback and the function that compiles

Around = Callable[[str], contextlib.AbstractContextManager[None]]
_open: list[contextlib.ExitStack] = []  # of the compilation under way; Dynamo holds a lock


def show_compilations(backend: Callable[..., Any], around: Around) -> None:
    """From now on, until Dynamo is reset, each compilation for `backend` runs inside of
    `around("tracing forward at model.py:12")`."""
    if not private_names.is_there("callback_handler"):
        return
    handler = private_names.callback_handler
    if any(getattr(each, "gravure", None) is backend for each in handler.start_callbacks):
        return

    def begin(*_: Any) -> None:
        code = _code_for(backend)
        stack = contextlib.ExitStack()
        _open.append(stack)
        if code is not None:
            what = f"{code.co_name} at {os.path.basename(code.co_filename)}:{code.co_firstlineno}"
            stack.enter_context(around(f"tracing {what}"))

    def end(*_: Any) -> None:
        if _open:
            _open.pop().close()

    begin.gravure = backend  # type: ignore[attr-defined]
    handler.register_start_callback(begin)
    handler.register_end_callback(end)


def _code_for(backend: Callable[..., Any]) -> CodeType | None:
    """What is compiled, where it is for `backend`."""
    frame = sys._getframe(1)
    for _ in range(_DEEPEST):
        if frame.f_back is None:
            return None
        frame = frame.f_back
        compiler, code = frame.f_locals.get("compiler_fn"), frame.f_locals.get("code")
        if compiler is not None and isinstance(code, CodeType):
            return code if _innermost(compiler) is backend else None
    return None


def _innermost(compiler: Any) -> Any:
    """The backend in what torch.compile wraps around it."""
    for _ in range(_DEEPEST):
        inner = getattr(compiler, "_torchdynamo_orig_backend", None)
        inner = inner if inner is not None else getattr(compiler, "compiler_fn", None)
        if inner is None:
            break
        compiler = inner
    return compiler

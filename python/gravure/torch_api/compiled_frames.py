"""Calls what Dynamo compiled of a function without what `torch.compile` does around each call.

In front of the compiled code `torch.compile` sets up what it might compile with, and behind it
takes that back. A call needs none of it where guards hold that were looked at by themselves. All
else goes through torch.compile: a call inside of what is compiled or traced, and one under another
stance (`torch.compiler.set_stance`).

What is kept of Dynamo's is held weakly: torch._dynamo.reset() drops it.

Private: `eval_frame` finds what was compiled; each entry has its code, and guards that know their
entry as long as Dynamo keeps it. `dynamo_eval_frame` has the stance of the process,
`get_eval_frame_callback` says whether the call is inside of compiled code, `is_fx_symbolic_tracing`
and `TracingContext` whether something is traced. Without them each call goes through torch.compile.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from .private_names import (
    TracingContext,
    dynamo_eval_frame,
    eval_frame,
    get_eval_frame_callback,
    is_fx_symbolic_tracing,
    is_there,
)

_NEEDED = ("dynamo_eval_frame", "eval_frame", "get_eval_frame_callback", "is_fx_symbolic_tracing")
_MOST = 4  # of one function, the last one first


class _Compiled:
    """One compiled code of a function, and its guards."""

    def __init__(self, entry: Any) -> None:
        self.code = weakref.ref(entry.code)
        self.guards = weakref.ref(entry.guard_manager)

    def holds(self, frame: dict[str, Any]) -> bool:
        guards = self.guards()
        return guards is not None and guards.cache_entry is not None and guards.root.check(frame)


class CompiledFrames:
    """What Dynamo compiled of one function."""

    def __init__(self, fn: FunctionType) -> None:
        self._fn = fn
        self._known: list[_Compiled] = []
        self._is_there = all(map(is_there, _NEEDED))

    def find(self, frame: dict[str, Any]) -> Callable[..., Any] | None:
        """The compiled code that is right for a call, or None: then torch.compile is to be called.

        `frame`: the arguments, by the names that `fn` has for them.
        """
        if not self._known or not _is_plain_call():
            return None
        fn = self._fn
        cells = fn.__closure__ or ()
        for name, cell in zip(fn.__code__.co_freevars, cells, strict=True):
            frame[name] = cell.cell_contents
        for i, each in enumerate(self._known):
            if each.holds(frame):
                if i > 0:
                    self._known.insert(0, self._known.pop(i))
                code = each.code()
                if code is None:
                    return None
                return FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, cells)
        return None

    def note(self) -> None:
        """Looks what there is, behind a call by torch.compile."""
        if self._is_there:
            entries = eval_frame._debug_get_cache_entry_list(self._fn.__code__)
            # Those that were for an object that is gone have no code.
            alive = [entry for entry in entries if entry.code is not None]
            self._known = [*map(_Compiled, alive[:_MOST])]


def _is_plain_call() -> bool:
    """Whether torch.compile would do nothing else than to call what was compiled."""
    stance = dynamo_eval_frame._stance
    return (
        get_eval_frame_callback() is None
        and stance.stance == "default"
        and stance.backend is None
        and not stance.skip_guard_eval_unsafe
        and not is_fx_symbolic_tracing()
        and TracingContext.try_get() is None
        and not torch.compiler.is_exporting()
        and not torch.jit.is_tracing()
    )

"""What traced code prints, warns and logs is left out of a step's program: noted, to be said.

Private: `IgnoredFunctionVariable` and `LoggingLoggerVariable` are Dynamo's words for it. Without
them nobody is warned.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

from .private_names import IgnoredFunctionVariable, LoggingLoggerVariable, MissingName, warn_of


def silent_functions() -> set[Any]:
    """What a program leaves out: it has nobody to talk to."""
    return {print, warnings.warn, *filter(callable, vars(logging.Logger).values())}


@contextlib.contextmanager
def discarding_output() -> Iterator[dict[str, None]]:
    """What Dynamo leaves out within, each with its line: `print() at model.py:12`.

    For who holds the lock on compiling (compile_lock.py).
    """
    found: dict[str, None] = {}

    def note(what: str, tx: Any) -> None:
        frame = tx.frame_summary()
        found[f"{what}() at {frame.filename}:{frame.lineno}"] = None

    try:
        call, call_method = IgnoredFunctionVariable.call_function, LoggingLoggerVariable.call_method
    except MissingName as error:
        warn_of(error)
        yield found
        return

    def call_noted(self: Any, tx: Any, *args: Any) -> Any:
        note(getattr(self.value, "__name__", str(self.value)), tx)
        return call(self, tx, *args)

    def call_method_noted(self: Any, tx: Any, name: str, *args: Any) -> Any:
        result = call_method(self, tx, name, *args)
        note(f"logger.{name}", tx)
        return result

    with (
        mock.patch.object(IgnoredFunctionVariable, "call_function", call_noted),
        mock.patch.object(LoggingLoggerVariable, "call_method", call_method_noted),
    ):
        yield found

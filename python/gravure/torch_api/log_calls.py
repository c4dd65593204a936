"""A logger that is told constants ends no graph: it is told behind the graph, in each call.

Dynamo would end the graph there, though many libraries warn once of a setting in each forward
(transformers of its `loss_type`). What has a tensor's value in it still ends the graph: behind the
graph that may be another value.

Private, of Dynamo's: `LoggingLoggerVariable` is a logger, `DebuggingVariable` a call that is made
behind the graph, an `AttrSource` says where the method is found, and a `ConstantVariable` is the
None that the call returns. Settings of `_dynamo` say what others want of such calls. Without them
such code breaks graphs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from .private_names import (
    AttrSource,
    ConstantVariable,
    DebuggingVariable,
    LoggingLoggerVariable,
    MissingName,
    _dynamo,
    warn_of,
)

# They return nothing. The last three are transformers'.
_TELLING = (
    *("debug", "info", "warning", "warn", "error", "critical", "fatal", "log"),
    *("info_once", "warning_once", "warning_advice"),
)


def log_behind_graphs(is_ours: Callable[[Any], bool]) -> None:
    """Has Dynamo do so where `is_ours` says that the backend is one of Gravure's."""
    try:
        LoggingLoggerVariable.call_method = _telling(LoggingLoggerVariable.call_method, is_ours)
    except MissingName as error:
        warn_of(error)


def _telling(call_method: Callable[..., Any], is_ours: Callable[[Any], bool]) -> Callable[..., Any]:
    @functools.wraps(call_method)
    def called(self: Any, tx: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        tells = name in _TELLING and not kwargs and all(arg.is_python_constant() for arg in args)
        if not (tells and is_ours(tx.output.compiler_fn) and _may_wait(self, tx, name)):
            return call_method(self, tx, name, args, kwargs)
        call = DebuggingVariable(getattr(self.value, name), source=AttrSource(self.source, name))
        # Dynamo writes the calls of the outermost function alone.
        tx.output.root_tx.debug_locals.append((call, list(args)))
        return ConstantVariable.create(None)

    return called


def _may_wait(logger: Any, tx: Any, name: str) -> bool:
    """Whether Dynamo would make the call behind the graph, and was not told what to do with it: by
    the user, or for the program of a step."""
    config = _dynamo.config
    method = getattr(logger.value, name, None)
    named = {*config.ignore_logging_functions, *config.reorderable_logging_functions}
    free = method is not None and named.isdisjoint((method, getattr(method, "__func__", method)))
    return free and logger.source is not None and not (tx.export or config.nested_graph_breaks)

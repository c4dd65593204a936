"""Dynamo's lock on compiling, for what compiles outside of it.

Tracing edits tables of the whole process: PyTorch's Python kernels, settings of Dynamo, AOTAutograd
and Inductor. Dynamo holds its lock while it calls a backend. What a call compiles later, for other
sizes or for parameters that were unfrozen, holds it, too: two at once would each put back what the
other had put there.

Private: that lock, `compile_lock`. Without it two threads that compile mix up their settings; one
of our own keeps apart at least what compiles for us.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from . import private_names

Given = ParamSpec("Given")
Made = TypeVar("Made")

compile_lock: Any = (
    private_names.compile_lock if private_names.is_there("compile_lock") else threading.RLock()
)


def one_at_a_time(compiles: Callable[Given, Made]) -> Callable[Given, Made]:
    """`compiles` under that lock, which the thread that holds it may take again."""

    @functools.wraps(compiles)
    def locked(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        with compile_lock:
            return compiles(*args, **kwargs)

    return locked

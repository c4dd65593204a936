"""Which functions of a model Dynamo made no graph of."""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

from torch import nn

from ..torch_api.left_frames import LIMIT, Left, left_frames

__all__ = ["LIMIT", "Left", "without_graph"]


def without_graph(fn: Callable[..., Any], modules: Iterable[nn.Module]) -> Counter[Left]:
    """Those of left_frames() that lie in `fn` or in a forward of `modules`, also where an earlier
    compilation left them: Dynamo says it once, and never looks at them again."""
    forwards = {type(part).forward for module in modules for part in module.modules()}
    codes = [getattr(inspect.unwrap(each), "__code__", None) for each in (fn, *forwards)]
    lines = {line for code in codes if code is not None for line in _lines(code)}
    every = left_frames().items()
    return Counter({left: n for left, n in every if left.location in lines})


def _lines(code: CodeType) -> Iterable[str]:
    """Each as "model.py:12"."""
    file = os.path.basename(code.co_filename)
    yield f"{file}:{code.co_firstlineno}"
    for _, _, line in code.co_lines():
        yield f"{file}:{line}"
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _lines(inner)

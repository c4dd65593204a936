"""Where a node of a graph comes from: its location, a source line and the path of a module."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import torch
from torch import fx

from ..graphs.names import Namer
from .program_text import quoted

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
# What is never the user's: this package, and torch. Not torchvision, whose name begins alike.
_NOT_THE_USERS = tuple(
    os.path.dirname(os.path.abspath(file)) + os.sep
    for file in (os.path.dirname(__file__), torch.__file__)
)


def _noted_module(meta: dict[str, Any]) -> str:
    """What whoever traced the graph has noted, as torchtitan does, where Dynamo has no stack."""
    noted = (meta.get("custom") or {}).get("module_fqn")
    return noted if isinstance(noted, str) else ""


class Locations:
    """Source line and module path of a node, as the end of its statement."""

    def __init__(self, namer: Namer) -> None:
        self._namer = namer
        self._sources: dict[str, str] = {}
        self._suffixes: dict[tuple[str, str], str] = {}
        self._roots = sorted((os.path.abspath(p) + os.sep for p in sys.path), key=len)[::-1]

    def source(self, node: fx.Node) -> str:
        """`model.py:12`: the innermost line of the user's; "" where nothing is known."""
        trace = node.meta.get("stack_trace")
        if not trace:
            return ""
        found = self._sources.get(trace)
        if found is None:
            found = self._sources[trace] = self._innermost(trace)
        return found

    def suffix(self, node: fx.Node) -> str:
        """` @"model.py:12" in "blocks.3.moe"`, as far as it is known."""
        meta = node.meta
        stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack")
        path = next(reversed(stack.values()))[0] if stack else ""
        noted = "" if path else _noted_module(meta)
        key = (meta.get("stack_trace") or "", path or noted)
        found = self._suffixes.get(key)
        if found is None:
            source, module = self.source(node), self._namer.name(path) if path else noted
            found = f" @{quoted(source)}" if source else ""
            found += f" in {quoted(module)}" if module else ""
            self._suffixes[key] = found
        return found

    def _innermost(self, trace: str) -> str:
        """Looks at the frames from the last one on: traces are long, the user's line is late. Where
        none is the user's, it is the last one."""
        last = ""
        end = len(trace)
        while (start := trace.rfind('File "', 0, end)) >= 0:
            match = _FRAME.match(trace, start)
            end = start
            if match is None:
                continue
            last = last or self.line(match[1], match[2])
            if not match[1].startswith(_NOT_THE_USERS):
                return self.line(match[1], match[2])
        return last

    def line(self, path: str, line: int | str | None) -> str:
        """`model.py:12`, relative to the nearest folder that modules are imported from."""
        full = os.path.abspath(path)
        root = next((r for r in self._roots if full.startswith(r)), os.path.dirname(full) + os.sep)
        return f"{full[len(root) :]}:{line}"

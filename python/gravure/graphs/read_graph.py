"""A graph that programs are written of, or that others are made of.

For each of its graphs that changes PyTorch writes and compiles a Python function, which nobody
calls here: half of what making a program takes.
"""

from __future__ import annotations

from typing import Any

from torch import fx


class ReadGraph(fx.GraphModule):
    """One without that function. Called, it goes node by node."""

    def recompile(self) -> Any:
        return None

    def forward(self, *args: Any) -> Any:
        return fx.Interpreter(self).run(*args)

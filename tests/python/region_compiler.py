"""Stands for Inductor: a compiler of regions that leaves them as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, fx


class RegionCompiler:
    """A compiler that runs each region as it is: everything must be eager's, bit for bit.

    Like Inductor's, its code lets go of each value, its operands too, behind the last use.
    """

    def __init__(self) -> None:
        self.targets: list[list[str]] = []  # of each region
        self.calls = 0

    @property
    def operators(self) -> list[int]:
        return [len(targets) for targets in self.targets]

    def __call__(self, module: fx.GraphModule, **_: Any) -> Callable[[list[Tensor]], Any]:
        calls = (n for n in module.graph.nodes if n.op == "call_function")
        self.targets.append([str(n.target) for n in calls])

        def run(inputs: list[Tensor]) -> Any:
            self.calls += 1
            return fx.Interpreter(module).boxed_run(inputs)

        return run

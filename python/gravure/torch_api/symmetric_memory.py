"""Captures of products that communicate by symmetric memory are made anew where that moves.

`symm_mem::fused_all_gather_matmul` and its kind pass their operands through a workspace of their
group's. PyTorch makes a larger one when one is asked for, on all ranks, and drops the last one. A
capture has its address: it is made anew, and what it knows stays until the process ends. There are
few, since each is larger than the last.

Private: the workspaces, by the names of groups. Without them such products run on the host.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..library.load import program_class
from .private_names import is_there

_MODULE = "torch.distributed._symmetric_memory"
_WORKSPACES = "_group_name_to_workspace_tensor"
# Those that are captured (ir/facts/op_table.cpp).
PRODUCTS = (
    "symm_mem::fused_all_gather_matmul",
    "symm_mem::fused_all_gather_scaled_matmul",
    "symm_mem::fused_matmul_reduce_scatter",
    "symm_mem::fused_scaled_matmul_reduce_scatter",
)


class WatchedWorkspaces(dict[str, Any]):
    """As PyTorch's own. `moved` is called with the name of a group whose workspace is replaced."""

    def __init__(self, known: dict[str, Any], moved: Callable[[str], None]) -> None:
        super().__init__(known)
        self.replaced: list[Any] = []
        self._moved = moved

    def __setitem__(self, group: str, workspace: Any) -> None:
        last = self.get(group)
        super().__setitem__(group, workspace)
        if last is not None:
            self.replaced.append(last)
            self._moved(group)


def watch_workspaces() -> tuple[str, ...]:
    """From here on. Returns the products that may not be captured, since this torch has no such
    workspaces to watch."""
    module = sys.modules.get(_MODULE)
    if module is None:  # no graph can have such a product yet
        return ()
    if not is_there(_WORKSPACES):
        return PRODUCTS
    known = getattr(module, _WORKSPACES)
    if not isinstance(known, WatchedWorkspaces):
        moved = program_class().shares_other_memory
        setattr(module, _WORKSPACES, WatchedWorkspaces(known, moved))
    return ()

"""Zero-bubble schedules of torch.distributed.pipelining, over stages that are compiled: refused.

They run a stage's backward in two halves: for its inputs, and later, from nodes of autograd's in
between, for its weights. A compiled graph is one such node. With it the first half would compute
all, the second one all again, and gradients of several outputs would be added up as if they were
one's.

Private: `stage_backward_input` is what a stage calls for the first half, by its own module's name.
Without it nothing is refused.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from typing import Any

from torch import Tensor

_MODULE, _NAME = "torch.distributed.pipelining.stage", "stage_backward_input"
_OURS = "GravureBackward"  # the name of backward_node.h's; AOTAutograd's wrapper is anybody's


def refuse_split_backward() -> None:
    """From now on, where stages of a pipeline are at hand."""
    module = sys.modules.get(_MODULE)
    inner = getattr(module, _NAME, None)
    if inner is None or hasattr(inner, "gravure_inner"):
        return

    @functools.wraps(inner)
    def looked_at(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if _has_compiled(outputs):
            raise RuntimeError(
                "a zero-bubble schedule differentiates a stage in two halves, inside of a graph "
                "that is compiled as one; take the schedule Interleaved1F1B, 1F1B or GPipe, or "
                "leave the stages of this one uncompiled"
            )
        return inner(outputs, *args, **kwargs)

    looked_at.gravure_inner = inner  # type: ignore[attr-defined]
    setattr(module, _NAME, looked_at)


def _has_compiled(outputs: Iterable[Any]) -> bool:
    """Whether a compiled graph is among what `outputs` were computed by."""
    waiting = [each.grad_fn for each in outputs if isinstance(each, Tensor)]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == _OURS:
            return True
        waiting += [each for each, _ in node.next_functions]
    return False

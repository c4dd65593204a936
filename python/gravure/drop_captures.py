"""`gravure.drop_captures()`: lets go of programs, and of all that they hold."""

from __future__ import annotations

from typing import Any

from torch import nn

from .calls.live_graphs import followed
from .torch_api.dispatch import not_traced
from .torch_api.modules import uncompiled


@not_traced
def drop_captures(compiled: Any = None) -> int:
    """Lets go of programs: their captures, their memory, and every tensor that they hold.

    Those of `compiled`, a model, compiled or not, or a step of `compile_step`; without it those of
    every compiled model, function and step. The next call makes and captures what it needs anew.
    What somebody holds of a step's results stays as it is. Returns how many programs there were.
    Raises TypeError for a function: its programs are known by the module that they belong to alone.
    """
    if compiled is None:
        return sum(graph.drop() for graph in followed())
    step = getattr(compiled, "gravure_step", None)
    if step is not None:
        return sum(graph.drop() for compiler in step.compilers() for graph in compiler.graphs)
    module = uncompiled(compiled)
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"drop_captures takes a module or a compiled step, not a {type(module).__name__}; "
            "drop_captures() lets go of all"
        )
    tensors = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    return sum(graph.drop(tensors) for graph in followed())

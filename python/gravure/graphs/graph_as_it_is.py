"""Dynamo's graph, run as it is, with eager's checkpoints.

A part under torch.utils.checkpoint is an operator in it that is meant for compilers. Run, it keeps
no random state, so that the backward draws another dropout than the forward (with a `context_fn`,
and in any case from 2.15 on), or it does not checkpoint at all (up to 2.14, without one). And from
2.15 on it compares operators, which differ where autocast keeps casts for the forward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx
from torch.utils.checkpoint import checkpoint

from ..torch_api.operators import higher_order_name

CHECKPOINT = "tag_activation_checkpoint"


def as_it_is(graph: fx.GraphModule) -> Callable[..., Any]:
    """What runs `graph`, called with its arguments one by one."""
    modules = [m for m in graph.modules() if isinstance(m, fx.GraphModule)]
    if any(_is_checkpoint(node) for m in modules for node in m.graph.nodes):
        return lambda *args: _Checkpointing(graph).run(*args)
    return graph


def _is_checkpoint(node: fx.Node) -> bool:
    return node.op == "call_function" and higher_order_name(node.target) == CHECKPOINT


class _Checkpointing(fx.Interpreter):
    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.extra_traceback = False  # an error says what eager's does

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if higher_order_name(target) != CHECKPOINT:
            return super().call_function(target, args, kwargs)
        part, *rest = args
        asked = {"use_reentrant": False, **kwargs}
        if (context := part.meta.get("_checkpoint_context_fn")) is not None:
            asked["context_fn"] = context

        # Each run has an interpreter of its own: it holds values until it ends.
        return checkpoint(lambda *values: _Checkpointing(part).run(*values), *rest, **asked)

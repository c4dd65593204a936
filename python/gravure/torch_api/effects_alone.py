"""An operator that returns nothing and writes nothing is called for its effect, and ends the graph.

    torch.ops.mylib.send(x)    # "send(Tensor x) -> ()": to a log, a socket, another process

AOTAutograd leaves out what reaches no result, unless it knows of an effect. It takes such an
operator of a user's for dead code, and eager's effect is lost without a word. So the graph ends in
front of it, and Python calls it in each call, as in eager. PyTorch's own assertion without a
message, which is dropped likewise, stays in the graph: it is told as one that has an effect.

Private: `TorchInGraphFunctionVariable` is what Dynamo puts into its graph, an operator as it is
called, `OpOverload`, or by its name alone, `OpOverloadPacket`; `unimplemented` breaks the graph.
Without them such operators are left out.
"""

from __future__ import annotations

import functools
import os
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import has_side_effect

from .operators import schema_of
from .private_names import (
    OpOverload,
    OpOverloadPacket,
    TorchInGraphFunctionVariable,
    is_there,
    unimplemented,
)

WHY = "an operator returns nothing and writes nothing, so it would be left out as dead code"
REMEDY = (
    "call it outside of the compiled function, name what it writes (mutates_args), or let it "
    "return a tensor that the function goes on with"
)

_NEEDED = ("OpOverload", "OpOverloadPacket", "TorchInGraphFunctionVariable", "unimplemented")
_CUSTOM_OP = os.path.join("torch", "_library", "custom_ops.py")


def to_the_call(frames: Sequence[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Without that of PyTorch's own in which an operator of `torch.library.custom_op` is called."""
    last = len(frames) - 1
    return [f for i, f in enumerate(frames) if i < last or not f.filename.endswith(_CUSTOM_OP)]


def keep_effects(is_ours: Callable[[Any], bool]) -> None:
    """Has Dynamo do so where `is_ours` says that the backend is one of Gravure's."""
    has_side_effect(torch.ops.aten._assert_async.default)
    if all(map(is_there, _NEEDED)):
        TorchInGraphFunctionVariable.call_function = _calling(
            TorchInGraphFunctionVariable.call_function, is_ours
        )


def _calling(call: Callable[..., Any], is_ours: Callable[[Any], bool]) -> Callable[..., Any]:
    @functools.wraps(call)
    def call_function(self: Any, tx: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        called = self.value
        if isinstance(called, (OpOverload, OpOverloadPacket)) and is_ours(tx.output.compiler_fn):
            if any(map(_is_left_out, _overloads(called))):
                unimplemented(
                    gb_type=WHY, context=str(called), explanation=str(called), hints=[REMEDY]
                )
        return call(self, tx, args, kwargs)

    return call_function


def _overloads(called: OpOverload | OpOverloadPacket) -> list[OpOverload]:
    if isinstance(called, OpOverload):
        return [called]
    return [getattr(called, name) for name in called.overloads()]


def _is_left_out(operator: OpOverload) -> bool:
    return not schema_of(operator).returns and not fx.Graph().call_function(operator).is_impure()

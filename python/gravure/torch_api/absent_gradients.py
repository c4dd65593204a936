"""A `torch.autograd.Function` that asks for None where a result has no gradient is left to eager.

`ctx.set_materialize_grads(False)` has autograd hand over None for the gradient of a result that
nobody used. Dynamo keeps that as an attribute that nobody reads: AOTAutograd hands over zeros, and
a backward that looks for None gives other gradients, without a word. Whether a result is used is
known in the backward alone. So the graph breaks in front of the function.

Private: `UserFunctionVariable` binds the arguments of what Dynamo traces into, and `unimplemented`
breaks the graph. Without them such a function is given zeros.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch.autograd.function import FunctionCtx

from .private_names import UserFunctionVariable, is_there, unimplemented

WHY = "an autograd.Function wants None for the gradient of a result that nobody uses"
REMEDY = (
    "leave set_materialize_grads(False) out, where its backward does not look for None; autograd "
    "hands over zeros then"
)


def leave_absent_gradients(is_ours: Callable[[Any], bool]) -> None:
    """Has Dynamo do so where `is_ours` says that the backend is one of Gravure's."""
    if is_there("UserFunctionVariable"):
        UserFunctionVariable.bind_args = _binding(UserFunctionVariable.bind_args, is_ours)


def _binding(bind: Callable[..., Any], is_ours: Callable[[Any], bool]) -> Callable[..., Any]:
    @functools.wraps(bind)
    def bound(self: Any, parent: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if self.fn is FunctionCtx.set_materialize_grads and is_ours(parent.output.compiler_fn):
            wanted = [*args, *kwargs.values()][-1]
            if not wanted.is_python_constant() or not wanted.as_python_constant():
                unimplemented(
                    gb_type=WHY,
                    context="set_materialize_grads(False)",
                    explanation=f"{WHY}.",
                    hints=[REMEDY],
                )
        return bind(self, parent, args, kwargs)

    return bound

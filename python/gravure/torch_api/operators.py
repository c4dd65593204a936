"""Operators of PyTorch's dispatcher, and the nested values that they take and return."""

from __future__ import annotations

from typing import Any

import torch

from .private_names import (
    HigherOrderOperator,
    OpOverload,
    _prims,  # noqa: F401
    _VariableFunctions,
    pytree,
)

__all__ = [
    "HigherOrderOperator",
    "OpOverload",
    "SYM_SQRT",
    "higher_order_name",
    "is_torchs_function",
    "opname_of",
    "pytree",
    "schema_of",
]

# _prims registers `prims::`, and what draws by a state. Without it graphs with them are errors.
# pytree: flattens what nodes return as Dynamo and AOTAutograd do. torch.utils.pytree, which is
# public, may flatten by another library, with other rules for dictionaries.

# OpOverload: what a node of a graph calls, where it is an operator. Without it an operator cannot
# be told from a function of Python's.
# HigherOrderOperator: what runs other graphs (cond, checkpointed draws). Without it a graph that
# holds one would be taken for one of plain calls.

# The square root of a symbolic number, whose public name some releases lack. Without it such a
# number is refused.
SYM_SQRT = [getattr(torch, name) for name in ("sym_sqrt", "_sym_sqrt") if hasattr(torch, name)]


def is_torchs_function(name: str) -> bool:
    """Whether `torch.name` calls an operator, and does nothing else.

    By _VariableFunctions. Without it a step that is not torch.optim's own is refused.
    """
    return hasattr(_VariableFunctions, name)


def schema_of(target: Any) -> Any:
    """What an operator takes, returns, writes and aliases; None for what is no operator.

    Without it nothing is known of an operator: no program.
    """
    return target._schema if isinstance(target, OpOverload) else None


def opname_of(overload: OpOverload) -> str:
    """The operator's name without namespace and overload. Without it values have longer names."""
    return overload._opname


def higher_order_name(target: Any) -> str:
    """The name of an operator that runs other graphs; "" for any other target.

    Without it such a graph is refused.
    """
    return "" if isinstance(target, OpOverload) else getattr(target, "_name", "")

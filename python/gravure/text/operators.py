"""What the writer knows about an operator, and how arguments are written for its schema."""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass
from typing import Any

import torch

from ..torch_api.operators import SYM_SQRT, OpOverload, schema_of

# Python's operators on symbolic numbers, as TorchScript's operators over ints; with floats among
# the operands the same name with the overload `float`.
SCALAR_OPERATORS: dict[Any, str] = {
    operator.add: "aten::add",
    operator.sub: "aten::sub",
    operator.mul: "aten::mul",
    operator.floordiv: "aten::floordiv",
    operator.mod: "aten::remainder",
    operator.neg: "aten::neg",
    operator.truediv: "aten::div",
    operator.pow: "aten::pow",
    operator.ge: "aten::ge",
    operator.le: "aten::le",
    operator.gt: "aten::gt",
    operator.lt: "aten::lt",
    operator.eq: "aten::eq",
    operator.ne: "aten::ne",
    torch.sym_max: "prim::max",
    torch.sym_min: "prim::min",
    max: "prim::max",
    min: "prim::min",
    math.ceil: "aten::ceil",
    math.floor: "aten::floor",
    operator.and_: "aten::__and__",
    operator.or_: "aten::__or__",
    operator.xor: "aten::__xor__",
    operator.lshift: "aten::__lshift__",
    operator.rshift: "aten::__rshift__",
    operator.abs: "prim::abs",
    abs: "prim::abs",
}
SCALAR_OPERATORS |= dict.fromkeys((*SYM_SQRT, math.sqrt), "aten::sqrt")

NOT_OPERATORS = (operator.not_, torch.sym_not)

# Outputs whose fake form is not what the kernel returns: position and true type.
UntrueTypes = tuple[tuple[int, str], ...]
UNTRUE_TYPES: dict[str, UntrueTypes] = {
    "aten::mkldnn_rnn_layer": ((3, "Byte(*, strides=[1], device=cpu)"),),
}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a schema: how a constant is written there."""

    name: str
    keyword_only: bool
    is_float: bool  # an int is written as a float
    is_int: bool  # a bool is written as an int
    is_number: bool  # a symbolic bool is made an int first
    fixed: int  # a single value stands for so many, 0 if not


@dataclass(frozen=True)
class Operator:
    """Text and schema of one overload."""

    text: str  # "aten::add.Tensor"
    parameters: tuple[Parameter, ...]
    returns: int
    returns_lists: tuple[bool, ...]
    # Of dtype and device, those that a factory may leave to defaults at run time: they are written.
    bakes: tuple[str, ...]
    refused: str  # a parameter that cannot be written ("generator"), "" if none


@functools.cache
def operator_of(overload: OpOverload) -> Operator:
    """What its schema says of it."""
    schema = schema_of(overload)
    suffix = f".{schema.overload_name}" if schema.overload_name else ""
    parameters = tuple(_parameter(argument) for argument in schema.arguments)
    kinds = {a.name: str(a.type) for a in schema.arguments}
    factory = not any("Tensor" in kind for kind in kinds.values()) and "dtype" in kinds
    returns = [str(r.type) for r in schema.returns]
    return Operator(
        text=schema.name + suffix,
        parameters=parameters,
        returns=len(returns),
        returns_lists=tuple(kind == "List[Tensor]" for kind in returns),
        bakes=tuple(n for n in ("dtype", "device") if n in kinds) if factory else (),
        refused=next((n for n, kind in kinds.items() if "Generator" in kind), ""),
    )


def _parameter(argument: Any) -> Parameter:
    kind = str(argument.type)
    inner = kind.removeprefix("Optional[").removeprefix("List[").rstrip("]")
    fixed = argument.N if kind.startswith(("List[", "Optional[List[")) and argument.N else 0
    return Parameter(
        name=argument.name,
        keyword_only=argument.kwarg_only,
        is_float=inner == "float",
        is_int=inner in ("int", "SymInt"),
        is_number=inner in ("number", "Scalar"),
        fixed=fixed,
    )

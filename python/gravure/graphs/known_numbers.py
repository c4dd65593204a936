"""Symbolic numbers whose value is known: a program for certain sizes holds them as constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy
import torch

from ..torch_api.fake_tensors import expression_of, fixed_number

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class KnownNumbers:
    """What the symbols of a graph stand for; without any, only what PyTorch itself knows."""

    def __init__(self, values: Mapping[Any, int] | None = None) -> None:
        self._values = {s: sympy.Integer(value) for s, value in (values or {}).items()}

    def __bool__(self) -> bool:
        return bool(self._values)

    def number(self, value: Any) -> int | float | bool | None:
        """The value of a symbolic number; None if it is known only at run time."""
        if not isinstance(value, _SYMBOLIC):
            return None
        if isinstance(value, torch.SymInt) and (fixed := fixed_number(value)) is not None:
            return fixed
        if not self._values:
            return None
        result = expression_of(value).xreplace(self._values)
        if result.free_symbols:
            return None
        if isinstance(value, torch.SymBool):
            return bool(result)
        return int(result) if isinstance(value, torch.SymInt) else float(result)

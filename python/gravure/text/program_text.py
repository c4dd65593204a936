"""Writes the parts of program text (docs/program-text.md): types, constants, strings, names."""

from __future__ import annotations

import re
from typing import Any

import torch

from ..graphs.known_numbers import KnownNumbers
from ..torch_api.fake_tensors import has_open_sizes

HEADER = "gravure 1"  # the first line: the version of the format

# PyTorch's c10::toString(ScalarType), by which ir/text/type_text.cpp reads them.
_SCALAR_TYPES: dict[torch.dtype, str] = {
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.float16: "Half",
    torch.float32: "Float",
    torch.float64: "Double",
    torch.complex32: "ComplexHalf",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
    torch.bool: "Bool",
    torch.bfloat16: "BFloat16",
    torch.uint16: "UInt16",
    torch.uint32: "UInt32",
    torch.uint64: "UInt64",
    torch.float8_e5m2: "Float8_e5m2",
    torch.float8_e4m3fn: "Float8_e4m3fn",
    torch.float8_e5m2fnuz: "Float8_e5m2fnuz",
    torch.float8_e4m3fnuz: "Float8_e4m3fnuz",
    torch.float8_e8m0fnu: "Float8_e8m0fnu",
    torch.float4_e2m1fn_x2: "Float4_e2m1fn_x2",
    torch.qint8: "QInt8",
    torch.quint8: "QUInt8",
    torch.qint32: "QInt32",
    torch.quint4x2: "QUInt4x2",
    torch.quint2x4: "QUInt2x4",
    torch.bits1x8: "Bits1x8",
    torch.bits2x4: "Bits2x4",
    torch.bits4x2: "Bits4x2",
    torch.bits8: "Bits8",
    torch.bits16: "Bits16",
    **{getattr(torch, "bcomplex32", None): "BComplex32"},  # from 2.14 on
    **{getattr(torch, f"uint{bits}"): f"UInt{bits}" for bits in range(1, 8)},
    **{getattr(torch, f"int{bits}"): f"Int{bits}" for bits in range(1, 8)},
}

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_ESCAPED = re.compile(r'["\\\x00-\x1f\x7f]')
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.]+")


def quoted(text: str) -> str:
    """`text` as a string constant."""
    if _ESCAPED.search(text) is None:
        return f'"{text}"'
    body = _ESCAPED.sub(lambda m: _ESCAPES.get(m[0]) or f"\\x{ord(m[0]):02x}", text)
    return f'"{body}"'


def float_text(value: float) -> str:
    """The shortest digits that give the same double back: `1.`, `0.1`, `1e-05`, `-inf`, `nan`."""
    text = repr(value)
    return text[:-1] if text.endswith(".0") else text


def constant_text(value: Any) -> str | None:
    """A constant that is no list and no tuple; None if program text has no way to write it."""
    if value is None or value is True or value is False:
        return str(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return float_text(float(value))
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value)
    if isinstance(value, torch.device):
        return device_text(value)
    if isinstance(value, complex):
        return f"complex({float_text(value.real)}, {float_text(value.imag)})"
    return None


def device_text(device: torch.device) -> str:
    return f'device("{device}")'


class TypeWriter:
    """Types of values, each distinct one written once."""

    def __init__(self, known: KnownNumbers | None = None) -> None:
        self._known = known or KnownNumbers()
        self._tensors: dict[Any, str] = {}

    def of(self, value: Any) -> str:
        """The type of an example value of a node, as torch.fx keeps it in `meta["val"]`."""
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, (bool, torch.SymBool)):
            return "bool"
        if isinstance(value, (int, torch.SymInt)):
            return "int"
        if isinstance(value, (float, torch.SymFloat)):
            return "float"
        if isinstance(value, torch.Generator):
            return "Generator"
        if isinstance(value, str):
            return "str"
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
            return "Tensor[]"
        return "Tensor"  # None: a tensor that the operator leaves undefined

    def tensor(self, value: torch.Tensor) -> str:
        if value.layout is not torch.strided:
            return "Tensor"
        shape, stride = value.shape, value.stride()
        if has_open_sizes(value):
            return self._tensor_text(value, self._dims(shape), self._dims(stride))
        key = (value.dtype, shape, stride, value.device)  # equal keys, equal text
        text = self._tensors.get(key)
        if text is None:
            text = self._tensor_text(value, self._dims(shape), self._dims(stride))
            self._tensors[key] = text
        return text

    def _dims(self, dims: Any) -> str:
        return ", ".join([str(d) if type(d) is int else self._dim(d) for d in dims])

    def _dim(self, dim: Any) -> str:
        """A size or stride; `*` where it is known only at run time."""
        value = self._known.number(dim)
        return "*" if value is None else str(value)

    @staticmethod
    def _tensor_text(value: torch.Tensor, shape: str, stride: str) -> str:
        dims = f"{shape}, strides=[{stride}], " if shape else ""
        return f"{_SCALAR_TYPES[value.dtype]}({dims}device={value.device})"


class NameTable:
    """Names of the values of one entry: each is defined once, nested blocks included."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def take(self, wanted: str) -> str:
        """`wanted` as a value (`%wanted`), with a number behind it if that name is taken."""
        name = wanted
        if not (name.isidentifier() and name.isascii()):
            name = _NOT_IN_A_NAME.sub("_", wanted) or "value"
            name = f"v{name}" if name.isdigit() else name
        unique = name
        while unique in self._taken:
            number = self._next.get(name, 1)
            self._next[name] = number + 1
            unique = f"{name}_{number}"
        self._taken.add(unique)
        return "%" + unique

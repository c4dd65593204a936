"""Runs program text with torch.ops: shows that the text carries everything.

Independent of the exporter, and slow. The runtime in C++ is the real one.
"""

from __future__ import annotations

import operator
import re
from typing import Any

import torch
from text_reader import Entry, Statement, Value, read

__all__ = ["Entry", "Statement", "Value", "read", "run"]

_PYTHON: dict[str, Any] = {
    "aten::add": operator.add,
    "aten::sub": operator.sub,
    "aten::mul": operator.mul,
    "aten::floordiv": operator.floordiv,
    "aten::remainder": operator.mod,
    "aten::neg": operator.neg,
    "aten::div": operator.truediv,
    "aten::ge": operator.ge,
    "aten::le": operator.le,
    "aten::gt": operator.gt,
    "aten::lt": operator.lt,
    "aten::eq": operator.eq,
    "aten::ne": operator.ne,
    "aten::__and__": operator.and_,
    "aten::__or__": operator.or_,
    "aten::__not__": operator.not_,
    "aten::__getitem__": operator.getitem,
    "aten::Int": int,
    "aten::Float": float,
    "aten::Bool": bool,
    "prim::max": max,
    "prim::min": min,
}


def run(entry: Entry, inputs: dict[str, Any]) -> list[Any]:
    """The outputs of `entry`, in order, for inputs by their role's name."""
    env = {value: inputs[name] for value, _, _, name in entry.inputs}
    with torch._C._AutoDispatchBelowAutograd():  # kernels of oneDNN's LSTM ask for the grad mode
        _run(entry.body, env)
        return [_resolve(value, env) for value, _, _ in entry.outputs]


def _resolve(arg: Any, env: dict[str, Any]) -> Any:
    if isinstance(arg, Value):
        return env[arg.name]
    if isinstance(arg, (list, tuple)):
        return type(arg)(_resolve(a, env) for a in arg)
    return arg


def _run(body: list[Statement], env: dict[str, Any]) -> None:
    for statement in body:
        args = [_resolve(a, env) for a in statement.args]
        kwargs = {k: _resolve(v, env) for k, v in statement.kwargs.items()}
        if statement.op == "prim::If":
            block, results = statement.blocks[0 if args[0] else 1]
            _run(block, env)
            found: Any = [_resolve(r, env) for r in results]
        else:
            found = _call(statement.op, args, kwargs, _resolve(statement.rng, env))
        if not isinstance(found, (list, tuple)) or statement.outputs[0][1].endswith("[]"):
            found = [found] * len(statement.outputs)
        assert len(found) == len(statement.outputs), statement
        for (name, kind), value in zip(statement.outputs, found, strict=True):
            assert name not in env or statement.op == "prim::If", f"%{name} is defined twice"
            _check_type(name, kind, value)
            env[name] = value


def _call(op: str, args: list[Any], kwargs: dict[str, Any], rng: Any) -> Any:
    if op == "cudagraph::save_rng_state":
        return torch.get_rng_state() if args[0] == "cpu" else torch.cuda.get_rng_state(args[0])
    base, _, overload = op.partition(".")
    namespace, _, name = base.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name, None) if namespace != "prim" else None
    if packet is None or overload not in packet.overloads() + [""]:
        return _PYTHON[base](*args)
    if (
        base in _PYTHON
        and overload in ("int", "float", "bool", "t", "Tensor")
        and not any(isinstance(a, torch.Tensor) for a in args)
    ):
        return _PYTHON[base](*args)
    call = getattr(packet, overload or "default")
    if rng is None:
        return call(*args, **kwargs)
    if isinstance(rng, torch.Generator):
        default = torch.cuda.default_generators[rng.device.index or 0]
        before = default.graphsafe_get_state()
        default.graphsafe_set_state(rng)
        try:
            return call(*args, **kwargs)
        finally:
            default.graphsafe_set_state(before)
    cuda = any(isinstance(a, torch.Tensor) and a.is_cuda for a in args)
    get, put = (
        (torch.cuda.get_rng_state, torch.cuda.set_rng_state)
        if cuda
        else (torch.get_rng_state, torch.set_rng_state)
    )
    before = get()
    put(rng)
    try:
        return call(*args, **kwargs)
    finally:
        put(before)


def _check_type(name: str, kind: str, value: Any) -> None:
    """The value is what the text says: shape and strides where they are known."""
    if not isinstance(value, torch.Tensor) or "," not in kind:
        return
    match = re.match(r"\w+\((.*?),strides=\[(.*?)\]", kind)
    assert match is not None, kind
    dims, strides = match.groups()
    for said, is_ in zip(dims.split(","), value.shape, strict=True):
        assert said in ("*", str(is_)), f"%{name} : {kind}, not {list(value.shape)}"
    if "*" not in kind and value.numel() > 1:
        known = [int(s) for s in strides.split(",")]
        for said, is_, size in zip(known, value.stride(), value.shape, strict=True):
            assert size == 1 or said == is_, f"%{name} : {kind}, not strides {value.stride()}"

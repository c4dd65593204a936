"""Who holds a tensor, in words of the user's code."""

from __future__ import annotations

import gc
import sys
import types
from pathlib import Path
from typing import Any

_DEPTH = 3  # a list in a dict in an object
_OWN = str(Path(__file__).resolve().parents[1])  # whose frames are no code of the user's
_SHOWN = 2  # holders that are named
_MOST = 200  # objects that hold one container, looked at


def holders_of(value: Any) -> list[str]:
    """`list "history" of train.py`, `attribute "last" of Trainer`, `parameter.grad`, each once."""
    found = list(dict.fromkeys(_holders(value, _DEPTH, {id(value)})))
    named = [name for name in found if '"' in name]
    return sorted(named, key=len)[:_SHOWN] or found[:_SHOWN]


def _holders(value: Any, depth: int, ignored: set[int]) -> list[str]:
    found: list[str] = []
    referrers = gc.get_referrers(value)
    del referrers[_MOST:]
    ignored = ignored | {id(referrers)}
    for each in referrers:
        if id(each) in ignored:
            continue
        if isinstance(each, types.FrameType):
            found += _in_frame(each, value)
        elif isinstance(each, dict):
            found += _in_dict(each, value, depth, ignored)
        elif isinstance(each, (list, tuple, set)) or type(each).__name__ == "deque":
            kind = type(each).__name__
            named = _holders(each, depth - 1, ignored | {id(each)}) if depth > 1 else []
            found += [f"a {kind}, {name}" for name in named] or [f"a {kind} of {len(each)}"]
        elif isinstance(each, types.CellType):
            found.append(_closed_over(each))
        else:
            name = _attribute(each, value)
            if name:
                found.append(f'attribute "{name}" of {type(each).__name__}')
    return found


def _closed_over(cell: types.CellType) -> str:
    for closure in gc.get_referrers(cell):
        for each in gc.get_referrers(closure) if isinstance(closure, tuple) else ():
            if isinstance(each, types.FunctionType) and each.__closure__ is closure:
                name = each.__code__.co_freevars[[c is cell for c in closure].index(True)]
                return f'variable "{name}" that {each.__name__} closes over'
    return "a variable that a function closes over"


def _in_frame(frame: types.FrameType, value: Any) -> list[str]:
    code = frame.f_code
    if code.co_filename.startswith(_OWN):
        return []
    names = [name for name, each in frame.f_locals.items() if each is value]
    return [f'variable "{name}" of {code.co_name}' for name in names[:1]]


def _in_dict(found: dict[Any, Any], value: Any, depth: int, ignored: set[int]) -> list[str]:
    keys = [key for key, each in list(found.items()) if each is value]
    if not keys:
        return []
    key = keys[0]
    if isinstance(found.get("__name__"), str) and "__builtins__" in found:
        module = sys.modules.get(found["__name__"])
        file = getattr(module, "__file__", None) or found["__name__"]
        return [f'variable "{key}" of {str(file).rpartition("/")[2]}']
    for owner in gc.get_referrers(found)[:_MOST]:
        if getattr(owner, "__dict__", None) is found:
            return [f'attribute "{key}" of {type(owner).__name__}']
    if depth > 1:
        named = _holders(found, depth - 1, ignored | {id(found)})
        if named:
            return [f"{name}, under {key!r}" for name in named]
    return [f"a dict, under {key!r}"]


def _attribute(owner: Any, value: Any) -> str:
    names = [*getattr(type(owner), "__slots__", ()), "grad"]
    return next((n for n in names if _read(owner, n) is value), "")


def _read(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name, None)
    except Exception:  # a property of the user's
        return None

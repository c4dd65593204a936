"""Qualified names for what a traced function reads: parameters, buffers, constants, user inputs."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..torch_api.modules import BUFFERS, MEMBERS, WRAPPED

_TOKEN = re.compile(r"""\.(?P<attr>\w+)|\[(?P<index>-?\d+)\]|\[(?P<q>['"])(?P<key>.*?)(?P=q)\]""")
_SILENT = MEMBERS | {"", "__dict__", "__func__", "__self__", WRAPPED, "cell_contents"}


@dataclass(frozen=True)
class InputSpec:
    """One input of the traced graph: its role, its qualified name, and its value at export."""

    role: str
    name: str
    value: Any

    @property
    def requires_grad(self) -> bool:
        return isinstance(self.value, torch.Tensor) and self.value.requires_grad


def parameter_names(fn: Callable[..., Any], count: int) -> list[str]:
    """What `fn` calls its first `count` positional arguments."""
    try:
        signature = inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn)
    except (TypeError, ValueError):
        return [f"arg{i}" for i in range(count)]
    names: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}{i}" for i in range(count - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    names += [f"arg{i}" for i in range(len(names), count)]
    return names[:count]


class Namer:
    """Names by the path from the function to the value, as Dynamo writes it.

    `L['fn']` is the function and `L['args']` its arguments; what lies on the way and says nothing
    (`_modules`, closure cells) is left out: `model.blocks.0.weight`.
    """

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._fn = fn
        self._args = args
        self._arg_names = parameter_names(fn, len(args))
        self._names: dict[str, str] = {}

    def spec(self, source: str, value: Any) -> InputSpec:
        """Role and name of a graph input whose Dynamo source is `source`."""
        if not isinstance(value, torch.Tensor):
            return InputSpec("symint", self.name(source), value)
        tokens = self._tokens(source)
        held = any(token in MEMBERS for token in tokens or ())
        if source.startswith("L['args']") and not held:
            role = "user_input"
        elif isinstance(value, torch.nn.Parameter) or value.requires_grad:
            role = "parameter"
        elif tokens and BUFFERS in tokens:
            role = "buffer"
        else:
            role = "constant"
        return InputSpec(role, self.name(source), value)

    def name(self, source: str) -> str:
        """`model.blocks.0.weight` for `L['fn'].__closure__[0].cell_contents._modules[…]…`."""
        found = self._names.get(source)
        if found is None:
            found = self._names[source] = self._name(source)
        return found

    def _name(self, source: str) -> str:
        tokens = self._tokens(source)
        if tokens is None:
            return re.sub(r"\W+", "_", source).strip("_")
        root, rest = tokens[0], tokens[1:]
        if root == "fn" and source.startswith("L["):
            return ".".join(self._below_function(rest))
        if root == "args" and source.startswith("L["):
            if not rest:
                return "args"
            known = rest[0] < len(self._arg_names)
            names = [self._arg_names[rest[0]] if known else f"arg{rest[0]}", *self._plain(rest[1:])]
            return ".".join(names)
        names = self._plain(rest if str(root).startswith("__import_") else tokens)
        return ".".join(names) or str(root)

    @staticmethod
    def _tokens(source: str) -> list[Any] | None:
        """Attribute names, keys and positions on the path, root first; None if it is no path."""
        if not source.startswith(("L[", "G[")):
            return None
        tokens: list[Any] = []
        at = 1
        while at < len(source):
            match = _TOKEN.match(source, at)
            if match is None:
                return None
            index = match["index"]
            tokens.append(int(index) if index else match["attr"] or match["key"])
            at = match.end()
        return tokens

    @staticmethod
    def _plain(tokens: list[Any]) -> list[str]:
        return [str(token) for token in tokens if token not in _SILENT]

    def _below_function(self, tokens: list[Any]) -> list[str]:
        """Names below the function itself: its closure cells by variable, a partial's arguments."""
        at: Any = self._fn
        names: list[str] = []
        rest = list(tokens)
        while rest:
            token = rest.pop(0)
            index = rest[0] if rest and isinstance(rest[0], int) else None
            if token == "__closure__" and index is not None:
                at = getattr(at, "__func__", at)
                code, cells = getattr(at, "__code__", None), getattr(at, token, None)
                names.append(code.co_freevars[index] if code else f"closure{index}")
                at = cells[index] if cells else None
                rest.pop(0)
            elif isinstance(at, functools.partial) and token == "args" and index is not None:
                names.append(parameter_names(at.func, index + 1)[index])
                at = at.args[index]
                rest.pop(0)
            elif isinstance(at, functools.partial) and token in ("func", "keywords"):
                at = getattr(at, token)
            else:
                at = self._member(at, token)
                if token not in _SILENT:
                    names.append(str(token))
        return names

    @staticmethod
    def _member(at: Any, token: Any) -> Any:
        """The object behind `token`, or None where it is not found (names still work)."""
        if isinstance(token, str) and hasattr(at, token):
            return getattr(at, token)
        try:
            return at[token]
        except (TypeError, KeyError, IndexError):
            return None


def unique_names(specs: Iterable[InputSpec | None]) -> tuple[InputSpec | None, ...]:
    """These specs. Where two have one name, the second has a number behind it."""
    taken: set[str] = set()
    found: list[InputSpec | None] = []
    for spec in specs:
        if spec is None:
            found.append(None)
            continue
        name, number = spec.name or spec.role, 1
        while name in taken:
            name, number = f"{spec.name}.{number}", number + 1
        taken.add(name)
        found.append(replace(spec, name=name))
    return tuple(found)


class FrameNamer(Namer):
    """Names by Dynamo's sources in any frame: `blocks.0.weight` for `L['self']._modules[…]…`."""

    def __init__(self) -> None:
        super().__init__(lambda: None, ())

    def _name(self, source: str) -> str:
        names = self._plain(self._tokens(source) or [])
        root = names[0] if names else ""
        if len(names) > 1 and (root in ("self", "fn") or root.startswith("__import_")):
            names = names[1:]  # `fn` is what torch.compile's own frame calls a module
        return ".".join(names) or super()._name("")


def tied_names(fn: Callable[..., Any], specs: list[InputSpec]) -> dict[str, list[str]]:
    """Other names, in the modules at hand, of the parameters among `specs`."""
    named = {id(s.value): s.name for s in specs if isinstance(s.value, torch.nn.Parameter)}
    found: dict[str, list[str]] = {}
    roots: dict[str, Any] = {"": fn if isinstance(fn, torch.nn.Module) else None}
    if isinstance(fn, types.FunctionType):
        cells = fn.__closure__ or ()
        for variable, cell in zip(fn.__code__.co_freevars, cells, strict=True):
            with contextlib.suppress(ValueError):  # nothing was assigned to it yet
                roots[variable] = cell.cell_contents
    for prefix, module in roots.items():
        if not isinstance(module, torch.nn.Module):
            continue
        for name, parameter in module.named_parameters(prefix, remove_duplicate=False):
            known = named.get(id(parameter))
            if known is not None and known != name:
                found.setdefault(known, []).append(name)
    return found

"""What differs from step to step, seen from outside: arguments, parameters, buffers, numbers, the
thread."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .assignments import assigned_at

_DEPTH = 4  # of containers that are looked into


@dataclass
class Change:
    """One thing that was another one in a later step."""

    name: str  # 'argument "x"', 'buffer "ema" of blocks.0'
    what: str  # "shape", "address", "number", …: findings.py says what each costs
    step: int  # from 1: the first one that it differed in
    times: int
    before: str
    after: str
    location: str = ""  # of the line that does it, where it is known
    last: int = 0  # step that it differed in


@dataclass
class Watch:
    """Compares each step with the one before."""

    modules: list[tuple[str, nn.Module]]
    _last: dict[str, tuple[str, Any]] = field(default_factory=dict)
    changes: dict[tuple[str, str], Change] = field(default_factory=dict)
    _locations: dict[str, str] = field(default_factory=dict)

    def look(self, step: int, arguments: Mapping[str, Any]) -> None:
        """Before a step."""
        now = dict(_facts_of(arguments))
        for name, module in self.modules:
            now |= dict(self._of_module(name, module))
        now["the thread that calls"] = ("thread", threading.current_thread().name)
        for name, (kind, value) in now.items():
            if name not in self._last:
                continue
            was_kind, was = self._last[name]
            if was_kind != kind:
                self._note(name, "kind", step, was_kind, kind)
            elif kind == "tensor":
                self._compare(name, step, was, value)
            elif was != value:
                self._note(name, kind, step, was, value)
        self._last = now

    def _compare(self, name: str, step: int, was: dict[str, Any], now: dict[str, Any]) -> None:
        for what in ("dtype", "device", "shape", "stride", "requires_grad"):
            if was[what] != now[what]:
                self._note(name, what, step, was[what], now[what])
                return
        if was["address"] != now["address"]:
            self._note(name, "address", step, hex(was["address"]), hex(now["address"]))

    def _note(self, name: str, what: str, step: int, before: Any, after: Any) -> None:
        location = self._locations.get(name, "")
        change = self.changes.setdefault(
            (name, what), Change(name, what, step, 0, str(before), str(after), location)
        )
        change.times += 1
        change.last = step

    def _of_module(self, path: str, module: nn.Module) -> Iterator[tuple[str, tuple[str, Any]]]:
        for prefix, each in module.named_modules():
            where = f" of {'.'.join(filter(None, (path, prefix)))}".removesuffix(" of ")
            kinds: list[tuple[str, Iterable[tuple[str, Any]]]] = [
                ("parameter", each.named_parameters(recurse=False)),
                ("buffer", each.named_buffers(recurse=False)),
                ("attribute", _attributes(each)),
            ]
            for kind, named in kinds:
                for name, value in named:
                    full = f'{kind} "{name}"{where}'
                    if full not in self._locations:
                        self._locations[full] = assigned_at(each, name)
                    yield from _facts(full, value, 1)
            yield f"training{where or ' of the model'}", ("number", each.training)


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    hidden = ("_parameters", "_buffers", "_modules", "training")
    for name, value in vars(module).items():
        if name not in hidden and isinstance(value, (torch.Tensor, int, float)):
            yield name, value


def _facts_of(arguments: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, Any]]]:
    for name, value in arguments.items():
        yield from _facts(name, value, _DEPTH)


def _facts(name: str, value: Any, depth: int) -> Iterator[tuple[str, tuple[str, Any]]]:
    if isinstance(value, torch.Tensor):
        strided = value.layout is torch.strided
        yield (
            name,
            (
                "tensor",
                {
                    "dtype": value.dtype,
                    "device": value.device,
                    "shape": tuple(value.shape),
                    "stride": value.stride() if strided else None,
                    "requires_grad": value.requires_grad,
                    "address": _address(value),
                },
            ),
        )
    elif isinstance(value, (bool, int, float, str, type(None))):
        yield name, ("number" if isinstance(value, (int, float)) else "value", value)
    elif depth and isinstance(value, Mapping):
        yield f"length of {name}", ("number", len(value))
        for key, member in value.items():
            yield from _facts(f"{name}[{key!r}]", member, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        yield f"length of {name}", ("number", len(value))
        for i, member in enumerate(value):
            yield from _facts(f"{name}[{i}]", member, depth - 1)


def _address(value: torch.Tensor) -> int:
    try:
        return value.data_ptr()
    except RuntimeError:  # a subclass without memory of its own
        return 0

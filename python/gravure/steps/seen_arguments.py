"""What a step was compiled for: which arguments were others each time, for an error to name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

_MOST = 3  # values that are named


class _Shape(NamedTuple):
    """What a program is for, of a tensor."""

    sizes: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.sizes)} on {self.device}".removeprefix("torch.")


class SeenArguments:
    """Of one step: the arguments of each call that it was compiled in, without their tensors."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        try:
            self._signature: inspect.Signature | None = inspect.signature(fn)
        except (TypeError, ValueError):
            self._signature = None
        self._seen: list[dict[str, Any]] = []

    def note(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._seen.append(dict(self._kinds(args, kwargs)))

    def too_many(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], limit: int, further: str
    ) -> tuple[str, str]:
        """What is said where no further program is made: the reason, and the remedy. `further`:
        what else a step may have several of."""
        now = dict(self._kinds(args, kwargs))
        reason = f"it was called with more than {limit} kinds of arguments{further}"
        several = {name: self._values(name, now) for name in now}
        several = {name: values for name, values in several.items() if len(values) > 1}
        raised = "raise torch._dynamo.config.recompile_limit"
        if not several:
            reason += ", though no argument differs: something else that it reads does"
            return reason, f"pass that as an argument, a number as a tensor, or {raised}"
        most = max(map(len, several.values()))
        named = [name for name, values in several.items() if len(values) == most]
        reason += ": " + ", ".join(f"{name} was {_listed(several[name])}" for name in named)
        numbers = [name for name in named if _is_number(now[name])]
        cures = []
        if numbers:
            which = " and ".join(numbers)
            cures.append(f"pass {which} as a tensor (`torch.tensor(…)`), which one program is for")
        if any(isinstance(now[name], _Shape) for name in named):
            cures.append("pad to fewer shapes")
        return reason, ", or ".join([*cures, raised])

    def _values(self, name: str, now: dict[str, Any]) -> list[Any]:
        """In the order of the calls, each once."""
        calls = [*self._seen, now]
        found = {(type(c[name]), repr(c[name])): c[name] for c in calls if name in c}
        return list(found.values())

    def _kinds(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        named: dict[str, Any] = {f"argument {i}": value for i, value in enumerate(args)} | {
            **kwargs
        }
        if self._signature is not None:
            try:
                named = self._signature.bind(*args, **kwargs).arguments
            except TypeError:
                pass
        for name, value in named.items():
            yield from _leaves(name, value)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor):
        yield name, _Shape(tuple(value.shape), value.dtype, value.device)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(f"{name}[{key!r}]", each)
    elif isinstance(value, (tuple, list)):
        for i, each in enumerate(value):
            yield from _leaves(f"{name}[{i}]", each)
    elif value is None or isinstance(value, (bool, int, float, complex, str)):
        yield name, value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, complex)) and not isinstance(value, bool)


def _listed(values: list[Any]) -> str:
    *before, now = [str(v) if isinstance(v, _Shape) else repr(v) for v in values]
    more = ", …" if len(before) > _MOST else ""
    return f"{', '.join(before[:_MOST])}{more}, and is {now} now"

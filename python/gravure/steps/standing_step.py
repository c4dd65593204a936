"""A step of an optimizer that is as the last one was, but for numbers: found out at C's speed.

What Python has is compared by identity: the optimizer's attributes, groups, settings, parameters,
and the dictionaries of its state. What lies behind the tensors the library compares, and asks each
parameter for its gradient.
"""

from __future__ import annotations

from itertools import chain
from operator import is_
from types import NoneType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ..torch_api.guard_checks import Check
from .update_program import UpdateProgram


class StandingStep:
    """Of one program, for as long as all is as it was."""

    def __init__(
        self, optimizer: Optimizer, program: UpdateProgram, numbers: list[float], same: Check
    ) -> None:
        """`numbers`: those of read_groups(). `same`: whether the state's dictionaries are as they
        were."""
        self.program = program
        self._same_state = same
        self._kind = type(optimizer)
        self._step = self._kind.step
        self._names = [*vars(optimizer)]
        self._attributes = [*vars(optimizer).values()]
        groups = optimizer.param_groups
        self._keys = [*chain.from_iterable(groups)]
        self._settings = [*chain.from_iterable(map(dict.values, groups))]
        self._members = [[*group["params"]] for group in groups]
        self._numbers = [*numbers]
        self._slices: dict[int, slice] = {}  # by setting, its numbers
        self._lists: list[int] = []  # settings that change in place
        self._fixed: list[tuple[int, list[Any]]] = []  # settings without a number, and members
        self.known = self._find_numbers() == len(numbers)

    def runs(self, optimizer: Optimizer) -> bool | None:
        """Whether it ran as a program. None: it is not as it was; nothing has run."""
        if not self._is_same(optimizer):
            return None
        return self.program.repeat(self._numbers)

    def _find_numbers(self) -> int:
        count = 0
        for i, (key, setting) in enumerate(zip(self._keys, self._settings, strict=True)):
            if key == "params":
                continue
            first = count
            if isinstance(setting, float):
                count += 1
            elif isinstance(setting, (tuple, list)):
                if all(isinstance(member, (str, int, NoneType)) for member in setting):
                    self._fixed.append((i, [*setting]))
                    continue
                if not all(isinstance(member, float) for member in setting):
                    return -1
                count += len(setting)
                if isinstance(setting, list):
                    self._lists.append(i)
            self._slices[i] = slice(first, count)
        return count

    def _is_same(self, optimizer: Optimizer) -> bool:
        own = vars(optimizer)
        groups = optimizer.param_groups
        if not (
            type(optimizer) is self._kind
            and self._kind.step is self._step
            and [*own] == self._names
            and all(map(is_, own.values(), self._attributes))
            and len(groups) == len(self._members)
            and [*chain.from_iterable(groups)] == self._keys
            and self._same_state()
        ):
            return False
        for group, members in zip(groups, self._members, strict=True):
            now = group["params"]
            if len(now) != len(members) or not all(map(is_, now, members)):
                return False
        settings = [*chain.from_iterable(map(dict.values, groups))]
        if not all(map(is_, settings, self._settings)):
            for i, (now, before) in enumerate(zip(settings, self._settings, strict=True)):
                if now is not before and not self._take(i, now, before):
                    return False
            self._settings = settings
        if not all([*settings[i]] == members for i, members in self._fixed):
            return False
        return all(self._take(i, settings[i], settings[i]) for i in self._lists)

    def _take(self, i: int, now: Any, before: Any) -> bool:
        """Other numbers for a setting; False where it is another kind of setting."""
        numbers = self._slices.get(i)
        if numbers is None or type(now) is not type(before):
            return False
        if isinstance(now, float):
            self._numbers[numbers.start] = float(now)
            return True
        if type(now) not in (tuple, list) or len(now) != numbers.stop - numbers.start:
            return False
        if not all(isinstance(member, float) for member in now):
            return False
        self._numbers[numbers] = map(float, now)
        return True


def parameters_without(optimizer: Optimizer, parameters: list[Tensor]) -> list[Tensor]:
    """Those of its groups that are not among `parameters`."""
    among = set(map(id, parameters))
    every = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    return [p for p in every if id(p) not in among]

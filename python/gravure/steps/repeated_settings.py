"""An optimizer's settings that are as they were, but for numbers: found out at C's speed.

What Python has is compared by identity: the optimizer's attributes, groups, settings and
parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import Any

from torch.optim import Optimizer

from ..library.direct_calls import items_of, same_objects


class RepeatedSettings:
    """Of one optimizer, for as long as nothing but numbers is another."""

    def __init__(self, optimizer: Optimizer, numbers: Sequence[float]) -> None:
        """`numbers`: those of read_groups()."""
        self._same = same_objects()
        self._kind = type(optimizer)
        self._step = self._kind.step
        self._own = items_of(vars(optimizer))
        groups = optimizer.param_groups
        self._groups = [items_of(group) for group in groups]
        self._members = [[*group["params"]] for group in groups]
        self.numbers = [*numbers]  # as they are now
        # By group, and by position among its items: which numbers a setting is.
        self._slices: list[dict[int, slice]] = []
        # Of them, floats: key, that position, and which number.
        self._floats: list[list[tuple[Any, int, int]]] = []
        self._lists: list[tuple[list[Any], slice]] = []  # settings that change in place
        self._fixed: list[tuple[Any, list[Any]]] = []  # without a number, and their members
        # Whether all settings are of kinds that are known here.
        self.known = self._find_numbers() == len(numbers)

    def _find_numbers(self) -> int:
        """How many there are; -1 where a setting is of another kind than are known."""
        count = 0
        self._lists, self._fixed, self._slices, self._floats = [], [], [], []
        for items in self._groups:
            slices: dict[int, slice] = {}
            floats: list[tuple[Any, int, int]] = []
            self._slices.append(slices)
            self._floats.append(floats)
            for i in range(1, len(items), 2):
                setting, first = items[i], count
                if items[i - 1] == "params":
                    continue
                if isinstance(setting, float):
                    if type(setting) is float:
                        floats.append((items[i - 1], i, first))
                    count += 1
                elif isinstance(setting, (tuple, list)):
                    if all(isinstance(member, (str, int, NoneType)) for member in setting):
                        if isinstance(setting, list):
                            self._fixed.append((setting, [*setting]))
                        continue
                    if not all(isinstance(member, float) for member in setting):
                        return -1
                    count += len(setting)
                    if isinstance(setting, list):
                        self._lists.append((setting, slice(first, count)))
                slices[i] = slice(first, count)
        return count

    def are_same(self, optimizer: Optimizer) -> bool:
        """Whether nothing but numbers is another. False: what was noted is no longer good."""
        same, groups = self._same, optimizer.param_groups
        if not (
            type(optimizer) is self._kind
            and self._kind.step is self._step
            and same(vars(optimizer), self._own)
            and len(groups) == len(self._groups)
        ):
            return False
        for k, group in enumerate(groups):
            noted = self._groups[k]
            if not same(group, noted):
                self._take_floats(k, group)
                if not same(group, noted) and not self._takes(k, group):
                    return False
            if not same(group["params"], self._members[k]):
                return False
        if not all([*setting] == members for setting, members in self._fixed):
            return False
        return all(self._put(numbers, setting) for setting, numbers in self._lists)

    def _take_floats(self, k: int, group: dict[str, Any]) -> None:
        """Other rates, which is what a scheduler changes."""
        noted = self._groups[k]
        for key, i, number in self._floats[k]:
            now = group.get(key)
            if now is not noted[i] and type(now) is float:
                self.numbers[number] = noted[i] = now

    def _takes(self, k: int, group: dict[str, Any]) -> bool:
        """Other numbers of a group; False where anything else is another."""
        now, before = items_of(group), self._groups[k]
        if len(now) != len(before):
            return False
        relisted = False
        for i, (value, known) in enumerate(zip(now, before, strict=True)):
            if value is known:
                continue
            if i % 2 == 0:
                if value != known:
                    return False
            elif not self._take(self._slices[k].get(i), value, known):
                return False
            relisted |= isinstance(value, list)
        self._groups[k] = now
        return not relisted or self._find_numbers() == len(self.numbers)

    def _take(self, numbers: slice | None, now: Any, before: Any) -> bool:
        """Other numbers for a setting; False where it is another kind of setting."""
        if numbers is None or type(now) is not type(before):
            return False
        if isinstance(now, float):
            self.numbers[numbers.start] = float(now)
            return True
        return type(now) in (tuple, list) and self._put(numbers, now)

    def _put(self, numbers: slice, now: Sequence[Any]) -> bool:
        if len(now) != numbers.stop - numbers.start:
            return False
        if not all(isinstance(member, float) for member in now):
            return False
        self.numbers[numbers] = map(float, now)
        return True

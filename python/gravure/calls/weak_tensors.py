"""Tensors that a program was made for: told by identity, and not kept alive."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence

from torch import Tensor

_NONE = -1  # is no object's id


class WeakTensors:
    """Which tensors these are, in order; a dead one is like no other."""

    def __init__(self, died: Callable[[int], None] | None = None) -> None:
        """`died` is called with the position of one that dies, on whatever thread lets go of it."""
        self._ids: tuple[int, ...] = ()
        self._watches: list[weakref.ref[Tensor]] = []
        self._died = died

    def are(self, tensors: Sequence[Tensor]) -> bool:
        return tuple(map(id, tensors)) == self._ids

    def may_be(self, tensors: Sequence[Tensor]) -> bool:
        """Whether each is one of them, or stands where one has died."""
        ids = map(id, tensors)
        return all(a == b or b == _NONE for a, b in zip(ids, self._ids, strict=True))

    def living(self) -> list[Tensor | None]:
        """In order; None where one is dead."""
        return [watch() for watch in self._watches]

    def exchange(self, tensors: Sequence[Tensor]) -> list[int]:
        """From now on it is these. Returns the positions of those that are others than before."""
        ids = tuple(map(id, tensors))
        former = self._ids or (_NONE,) * len(ids)
        changed = [i for i, (a, b) in enumerate(zip(ids, former, strict=True)) if a != b]
        watches = self._watches or [weakref.ref(tensor) for tensor in tensors]
        for i in changed:
            watches[i] = weakref.ref(tensors[i], _forgetting(weakref.ref(self), i))
        self._watches, self._ids = watches, ids
        return changed

    def _forget(self, i: int, watch: weakref.ref[Tensor]) -> None:
        if self._watches[i] is not watch:
            return  # another tensor is watched at this position
        self._ids = (*self._ids[:i], _NONE, *self._ids[i + 1 :])
        if self._died is not None:
            self._died(i)


def _forgetting(kept: weakref.ref[WeakTensors], i: int) -> Callable[[weakref.ref[Tensor]], None]:
    """What is called when the tensor at position `i` dies; it keeps nothing alive itself."""

    def forget(watch: weakref.ref[Tensor], ends: Callable[[], bool] = sys.is_finalizing) -> None:
        if ends():  # the interpreter: the library cannot be called any more
            return
        found = kept()
        if found is not None:
            found._forget(i, watch)

    return forget

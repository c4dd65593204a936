"""Which instance ran the forward that a backward belongs to."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from ..torch_api.autograd import keeps_graph
from .instance import Instance

_MOST = 4096  # backwards that are still to come, of which it is known whose they are


class PendingBackwards:
    """Of one graph. A forward is known again by the address of a tensor that it saved."""

    def __init__(self, marker: tuple[int, int]) -> None:
        """`marker`: that tensor's position, as ProgramMaker.marker() says it."""
        self._result, self._argument = marker
        self._instances: weakref.WeakValueDictionary[int, Instance] = weakref.WeakValueDictionary()

    def note(self, results: Sequence[Any], instance: Instance) -> None:
        """A forward of `instance` has given these results, of its whole graph."""
        if len(self._instances) >= _MOST:
            self._instances.clear()
        self._instances[results[self._result].data_ptr()] = instance

    def take(self, args: Sequence[Any]) -> Instance | None:
        """Whose forward saved what a backward is given; None where that is not known, or it is
        gone."""
        address = args[self._argument].data_ptr()
        if keeps_graph():  # another backward of the same forward may come
            return self._instances.get(address)
        return self._instances.pop(address, None)

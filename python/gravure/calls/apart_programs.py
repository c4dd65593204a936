"""Programs that give each term of a gradient by itself, made when a backward needs one.

A tensor that is used outside of a graph, too, has eager's gradient in every bit only if autograd's
engine adds what each use gives (gradient_terms.py says why). A program that gives the terms has
more results, and they are added outside of it. So a program adds them itself, which is right as
long as nothing came to the tensor before. The library sees in each backward whether something did
(BackwardNode::callFor), and asks here for a program beside, which runs that backward uncaptured.
From the next call on such a program is the graph's own.
"""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..library.namespace import LIBRARY
from ..torch_api.dynamo_errors import first_line

_NUMBERS = itertools.count(1)
logger = logging.getLogger("gravure")


class ApartProgram:
    """The program beside one that adds. `number` is that one's, by which the library asks."""

    def __init__(self, label: str, make: Callable[[], Any]) -> None:
        """`make` returns what was loaded. It keeps no program alive, since one keeps this."""
        self.number = next(_NUMBERS)
        self.made: Any = None  # what it returned
        self._label = label
        self._make = make
        self._failed = False
        self._told: Callable[[], None] = lambda: None
        _BESIDE[self.number] = self

    def tell(self, asked: Callable[[], None]) -> None:
        """`asked` is called when the program was asked for."""
        self._told = asked

    def program(self) -> Any:
        """None where it cannot be made, which is said once."""
        if self._failed:
            return None
        try:
            self.made = self.made or self._make()
        except Exception as error:
            self._failed = True
            said = f"its terms cannot be had one by one ({first_line(error)})"
            logger.warning("%s: %s", self._label, unlike_eagers("a tensor", said))
            return None
        self._told()
        return self.made.program


_BESIDE: weakref.WeakValueDictionary[int, ApartProgram] = weakref.WeakValueDictionary()


def unlike_eagers(name: str, why: str) -> str:
    """What is said of a gradient that is added otherwise."""
    return (
        f"the graph uses {name} at several places, code outside of it uses it, too, and {why}: the "
        "graph adds the gradients of its own uses first, so the last bits of that gradient may be "
        "others than eager's. Compile both in one function, or take gravure.compile_step"
    )


# python/csrc/library.cpp declares it. Not "CompositeImplicitAutograd": Inductor's import looks up
# each operator that has such a kernel, and there is none before the library is loaded.
@torch.library.impl(LIBRARY, "apart", "CompositeExplicitAutograd")
def _apart(number: int) -> Any:
    found = _BESIDE.get(number)
    return found.program() if found is not None else None

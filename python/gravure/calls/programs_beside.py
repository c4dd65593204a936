"""Programs of the same forward with another backward, made when a backward needs one.

A program's backward is made for what most loops do, which a graph does not tell; the library sees
in each backward what the loop does, asks here for a program beside where it is something else, and
runs that backward by it, uncaptured. From the next call on such a program is the graph's own.

`apart`: it gives each term of a gradient by itself. A tensor that is used outside of a graph, too,
has eager's gradient in every bit only if autograd's engine adds what each use gives
(gradient_terms.py says why). A program that gives the terms has more results, and they are added
outside of it. So a program adds them itself, which is right as long as nothing came to the tensor
before (BackwardNode::callFor).

`fitted`: it is for the gradients of outputs as they come (given_gradients.py): some never, some not
in their output's memory format.
"""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..graphs.given_gradients import Forms, forms_of
from ..library.namespace import LIBRARY
from ..torch_api.dynamo_errors import first_line
from .written_program import LoadedFrom

_NUMBERS = itertools.count(1)
logger = logging.getLogger("gravure")


class ProgramsBeside:
    """The programs beside one. `number` is that one's, by which the library asks."""

    def __init__(
        self,
        label: str,
        forms: Forms,
        make: Callable[[Forms, bool], LoadedFrom | None],
        fit: Callable[[Forms, bool], Forms],
        *,
        sums: bool,
    ) -> None:
        """Of a program for gradients of `forms`. `sums`: it adds terms.

        `make` takes forms, and whether terms are apart; `fit` says which of such forms it can make.
        They keep no program alive, since one keeps this.
        """
        self.number = next(_NUMBERS)
        self.apart: LoadedFrom | None = None
        self.fitted: tuple[Forms, LoadedFrom] | None = None  # with terms as this one's
        self._label = label
        self._forms = forms
        self._make = make
        self._fit = fit
        self._sums = sums
        self._failed = False
        self._told: Callable[[], None] = lambda: None
        _BESIDE[self.number] = self

    def tell(self, asked: Callable[[], None]) -> None:
        """`asked` is called when the program that gives terms was asked for."""
        self._told = asked

    def apart_program(self) -> Any:
        """None where it cannot be made, which is said once."""
        if self._failed or not self._sums:
            return None
        try:
            self.apart = self.apart or self._make(self._forms, True)
        except Exception as error:
            self._failed = True
            said = f"its terms cannot be had one by one ({first_line(error)})"
            logger.warning("%s: %s", self._label, unlike_eagers("a tensor", said))
            return None
        if self.apart is None:
            self._failed = True
            return None
        self._told()
        return self.apart.program

    def fitted_program(self, numbers: Sequence[int], apart: bool) -> Any:
        """None where there is none: this one brings gradients into what it was traced for."""
        apart = apart and self._sums
        try:
            forms = self._fit(forms_of(numbers), apart)
            if self.fitted is not None and self.fitted[0] == forms and not apart:
                return self.fitted[1].program
            made = self._make(forms, apart) if forms else None
        except Exception as error:  # this one is right, too, but for last bits
            logger.debug("%s: not for %s: %r", self._label, numbers, error)
            return None
        if made is None:
            return None
        if apart:
            self._told()
        else:
            self.fitted = forms, made
        return made.program


_BESIDE: weakref.WeakValueDictionary[int, ProgramsBeside] = weakref.WeakValueDictionary()


def unlike_eagers(name: str, why: str) -> str:
    """What is said of a gradient that is added otherwise."""
    return (
        f"the graph uses {name} at several places, code outside of it uses it, too, and {why}: the "
        "graph adds the gradients of its own uses first, so the last bits of that gradient may be "
        "others than eager's. Compile both in one function, or take gravure.compile_step"
    )


# python/csrc/library.cpp declares them. Not "CompositeImplicitAutograd": Inductor's import looks up
# each operator that has such a kernel, and there is none before the library is loaded.
@torch.library.impl(LIBRARY, "apart", "CompositeExplicitAutograd")
def _apart(number: int) -> Any:
    found = _BESIDE.get(number)
    return found.apart_program() if found is not None else None


@torch.library.impl(LIBRARY, "fitted", "CompositeExplicitAutograd")
def _fitted(number: int, forms: Sequence[int], apart: bool) -> Any:
    found = _BESIDE.get(number)
    return found.fitted_program(forms, apart) if found is not None else None

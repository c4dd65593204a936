"""Random numbers of Python's `random` stay Python's: Dynamo breaks the graph where it would freeze
them.

Dynamo models a generator, the one of the module or any other, by a copy of its state. What is drawn
of the copy stays in the graph as a constant: each call has the numbers of the first one, and the
generator does not go on. `sample` and `shuffle` of the module are such draws from torch 2.14 on,
and draws of any other generator up to 2.14. The draws of single numbers that Dynamo makes anew in
each call go on in the graph, and so do all draws behind a `seed` in the function itself.

Private: Dynamo's `RandomVariable` is such a generator, and `unimplemented` breaks the graph. From
2.15 on a `RandomCallOnSource` is a draw that is made anew. Without them such a graph has other
numbers than eager's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from .numpy_draws import REMEDY
from .private_names import RandomVariable, is_there, unimplemented

WHY = "Python draws random numbers here"
_MADE_ANEW = ("random", "randint", "randrange", "uniform")


def draw_from_python(is_ours: Callable[[Any], bool]) -> None:
    """Has Dynamo do so where `is_ours` says that the backend is one of Gravure's."""
    RandomVariable.call_method = _drawing(RandomVariable.call_method, is_ours)


def _drawing(call: Callable[..., Any], is_ours: Callable[[Any], bool]) -> Callable[..., Any]:
    @functools.wraps(call)
    def called(self: Any, tx: Any, name: str, args: Sequence[Any], kwargs: Any) -> Any:
        if is_ours(tx.output.compiler_fn) and _would_freeze(self, tx, name, args):
            unimplemented(
                gb_type=WHY, context=f"random.{name}", explanation=f"{WHY}.", hints=[REMEDY]
            )
        return call(self, tx, name, args, kwargs)

    return called


def _would_freeze(generator: Any, tx: Any, name: str, args: Sequence[Any]) -> bool:
    if generator.source is None or tx.output.side_effects.is_modified(generator):
        return False  # made, or seeded, in the function
    if name in ("seed", "setstate"):
        return not args
    return name not in _MADE_ANEW or not is_there("RandomCallOnSource")

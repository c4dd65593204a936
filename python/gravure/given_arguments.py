"""Arguments that a public function was given, and who they were meant for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .torch_api.modules import called_of


def arguments_of(given: Any) -> tuple[Any, ...]:
    """What a call is given: the members of a tuple or a list; anything else is one argument."""
    return tuple(given) if isinstance(given, (tuple, list)) else (given,)


def refuse_misplaced(function: str, misplaced: Mapping[str, Any], place: str) -> None:
    """Raises TypeError for keywords that are the user's function's and not `function`'s: it names
    them and where they go. In `place` "{given}" stands for them."""
    if not misplaced:
        return
    given = ", ".join(f'"{name}": …' for name in misplaced)
    names = ", ".join(misplaced)
    raise TypeError(
        f"{function} has no argument {names}; what the function itself is called with goes "
        + place.format(given=given)
    )


def refuse_unfitting(
    function: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Raises TypeError where `fn` cannot be called with these. What has no signature, and a module
    whose hooks may give it others, is left to the call."""
    called = called_of(fn)
    if called is None:
        return
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(fn, "__name__", type(fn).__name__)
        raise TypeError(
            f"{name} cannot be called with what {function} was given: {error}; give it what the "
            f"function itself takes: {function}(fn, (x, y), {{...}})"
        ) from None

"""Arguments that a public function was given, and who they were meant for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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

"""What became of each compiled graph: `gravure.report()`."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .compiled_graph import CompiledGraph

_LIVE: weakref.WeakSet[CompiledGraph] = weakref.WeakSet()


def follow(graph: CompiledGraph) -> None:
    """Makes `graph` part of every report, for as long as it lives."""
    _LIVE.add(graph)

"""Every compiled graph that is alive: to be reported, dropped, and ended before the device is."""

from __future__ import annotations

import weakref

from .compiled_graph import CompiledGraph

_LIVE: weakref.WeakSet[CompiledGraph] = weakref.WeakSet()
_UPDATES: weakref.WeakSet[CompiledGraph] = weakref.WeakSet()


def follow(graph: CompiledGraph) -> None:
    """Makes `graph` part of every report, for as long as it lives."""
    _LIVE.add(graph)


def follow_update(graph: CompiledGraph) -> None:
    """The same for what an optimizer, clipping or an update calls by itself. It is not among
    followed(), since nobody but its owner lets go of its program."""
    _UPDATES.add(graph)


def reported() -> list[CompiledGraph]:
    """All that are alive."""
    return [*followed(), *_UPDATES]


def unfollow(graph: CompiledGraph) -> None:
    """No report has it any more."""
    _LIVE.discard(graph)


def followed() -> list[CompiledGraph]:
    """Those of compiled models and steps: what may be dropped."""
    return list(_LIVE)


def drop_converted() -> None:
    """Lets go of programs whose module is on another device, or of another dtype, by now."""
    for graph in followed():
        graph.drop_converted()

"""Guards on a tree of modules: one look where nothing has changed.

Of each module Dynamo checks type, hooks and what was read, in each call: 25 us a layer of a
transformer. Where CPython tells of each change of a dictionary, from 3.12 on, Dynamo can skip a
module none of whose dictionaries has changed since the last call. It does so by default up to torch
2.11, and later by a setting, which is off for what it reads with an older Python. Here it is on for
Gravure's graphs.

A module that is given another class (`module.__class__ = Other`) has the same dictionaries. So the
classes of all modules are compared beside, in each call, also where Dynamo skips by itself.

Private: `GuardBuilder` and `GuardManagerWrapper`, which makes that tree and ends it in `finalize`;
`_dynamo` has the setting. Without them, or what guard_checks.py looks up by, guards are as for
other backends.
"""

from __future__ import annotations

import functools
import operator
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from .guard_checks import finder_in
from .private_names import GuardBuilder, GuardManagerWrapper, _dynamo, is_there

IsOurs = Callable[[Any], bool]

_NEEDED = ("GuardBuilder", "GuardManagerWrapper", "_dynamo", "_get_closure_vars")
_CLASSES = "gravure_classes"  # of a tree of guards: those of the modules in it
_WATCHES = sys.version_info >= (3, 12)
_call: Callable[[Any], Any] = getattr(operator, "call", lambda each: each())  # from 3.11 on


def skip_unchanged_modules(is_ours: IsOurs) -> None:
    """Has Dynamo do so where `is_ours` says that the backend is one of Gravure's."""
    if not all(map(is_there, _NEEDED)):
        return
    of_type, finalize = GuardBuilder.TYPE_MATCH, GuardManagerWrapper.finalize

    @functools.wraps(of_type)
    def guard_type(self: Any, guard: Any) -> None:
        graph = self.check_fn_manager.output_graph
        skipping = _WATCHES or _skips_by_itself()
        if skipping and is_ours(getattr(graph, "compiler_fn", None)):
            value = self.get(guard)
            if isinstance(value, torch.nn.Module):
                made = vars(self.guard_manager).setdefault(_CLASSES, Classes(self.scope["G"]))
                made.add(_outermost(self, guard.originating_source))
        of_type(self, guard)

    @functools.wraps(finalize)
    def finish(self: Any) -> None:
        classes = vars(self).pop(_CLASSES, None)
        if classes is not None:
            if not _skips_by_itself():
                self.find_tag_safe_roots()
            words = ["modules have the classes that they had"]
            self.root.add_lambda_guard(classes.are_same, words, None)
        finalize(self)

    GuardBuilder.TYPE_MATCH = guard_type
    GuardManagerWrapper.finalize = finish


def _skips_by_itself() -> bool:
    return bool(getattr(_dynamo.config, "use_recursive_dict_tags_for_guards", False))


def _outermost(builder: Any, source: Any) -> Any:
    """Where the module is found that has all others on the way to `source`."""
    found = source
    while (source := getattr(source, "base", None)) is not None:
        if isinstance(builder.get(source), torch.nn.Module):
            found = source
    return found


class _Seen:
    """A module and all in it, which are not kept alive, and the classes that they had."""

    def __init__(self, module: Any, gone: Callable[[Any], None]) -> None:
        self.module = weakref.ref(module, gone)
        self._all = [*map(weakref.ref, module.modules())]
        self._classes = self._now()

    def _now(self) -> list[type]:
        return [*map(type, map(_call, self._all))]

    def is_same(self) -> bool:
        if self._now() == self._classes:
            return True
        both = zip(self._all, self._classes, strict=True)
        pairs = [(each, kind) for each, kind in both if each() is not None]
        same = all(type(each()) is kind for each, kind in pairs)
        if same:  # some have gone, which other guards look at where it matters
            self._all, self._classes = [each for each, _ in pairs], [kind for _, kind in pairs]
        return same


class Classes:
    """The classes of the modules that a graph is guarded on.

    What is compiled for one module serves others like it. So modules are looked up where the graph
    finds them, and those of each are known from the first call on, in which Dynamo skips nothing.
    """

    def __init__(self, names: dict[str, Any]) -> None:
        """`names`: the globals of the frame."""
        self._names = names
        self._places: dict[str, Any] = {}  # Dynamo's sources, by name
        self._find: Callable[[Any], list[Any]] | None = None
        self._seen: dict[int, _Seen] = {}

    def add(self, source: Any) -> None:
        self._places[source.name] = source

    def are_same(self, frame: Any) -> bool:
        """`frame`: the locals of the one that is called."""
        if self._find is None:
            self._find = finder_in(self._names, [*self._places.values()])
        try:
            found = self._find(frame)
        except Exception:  # other things are there: the guards on these say so
            return True
        return all(map(self._is_same, found))

    def _is_same(self, module: Any) -> bool:
        if not isinstance(module, torch.nn.Module):
            return True
        place = id(module)
        known = self._seen.get(place)
        if known is None or known.module() is not module:
            known = _Seen(module, lambda _: self._seen.pop(place, None))
            self._seen[place] = known
        return known.is_same()

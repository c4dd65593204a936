"""Notices in one native call that what was looked up once is not there any more.

The checks are Dynamo's own guards, run from C++. They know a tree of modules by the versions of its
dictionaries (CPython 3.12 tells them of each change), so a parameter more costs next to nothing.

Private: `GuardBuilder`, `GuardManagerWrapper` and `GuardManagerType` make such checks,
`LocalSource` and `GlobalSource` say where a value is found, and `_get_closure_vars` is what guards
read besides. Without them everything is looked up in each call, which costs as much as to launch a
small graph.
"""

from __future__ import annotations

import logging
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx

from .private_names import (
    GlobalSource,
    GuardBuilder,
    GuardManagerType,
    GuardManagerWrapper,
    LocalSource,
    MissingName,
    _get_closure_vars,
    warn_of,
)

logger = logging.getLogger("gravure")

Check = Callable[[], bool]


def never() -> bool:
    """The check of what was not looked up yet, or cannot be watched."""
    return False


def finder_in(
    names: dict[str, Any], sources: Sequence[Any]
) -> Callable[[Mapping[str, Any]], list[Any]]:
    """Finds what is at these of Dynamo's sources, in a frame of these locals and the globals
    `names`."""
    text = ", ".join(source.name for source in sources)
    code = compile(f"[{text}]", "<sources>", "eval")
    known = {**_get_closure_vars(), "G": names}
    return lambda local: eval(code, known, {"L": local})


class Scope:
    """What a function finds under the names of a frame that calls it, `L['fn']`, and of globals."""

    def __init__(self, fn: Any, names: dict[str, Any]) -> None:
        """`fn` is the caller's local `fn`, and `names` are its globals."""
        self._globals = names
        self._fn = _weakly(fn)

    def sources(
        self, graph: fx.GraphModule, inputs: Sequence[Any], positions: Sequence[int]
    ) -> dict[int, Any]:
        """Dynamo's sources of those of `graph`'s `inputs` that every call finds by itself."""
        nodes = graph.graph.find_nodes(op="placeholder")
        found = {}
        for i in positions:
            source = getattr(nodes[i], "_dynamo_source", None)
            if source is not None and self._reaches(source) and self._is(source, inputs[i]):
                found[i] = source
        return found

    def finder(self, sources: Sequence[Any]) -> Callable[[], list[Any]]:
        """Finds what is at these of Dynamo's sources."""
        find = finder_in(self._globals, sources)
        return lambda: find(self._locals())

    def watch(self, sources: Sequence[Any], found: Sequence[Any]) -> Check:
        """Whether `found` is still at `sources`. Who asks must keep it alive."""
        manager = GuardManagerWrapper()
        nothing = SimpleNamespace(output_graph=SimpleNamespace(guard_on_key_order=()))
        builder = GuardBuilder(
            _frame.__code__, None, None, None, self._locals(), self._globals, manager, nothing
        )
        for source, value in zip(sources, found, strict=True):
            guard = builder.get_guard_manager_from_source(source)
            guard.add_id_match_guard(id(value), [source.name], None)
        manager.find_tag_safe_roots()
        check = manager.root.check
        return lambda: check(self._locals())

    def _reaches(self, source: Any) -> bool:
        """True for what is found through the function, or a global name."""
        while getattr(source, "base", None) is not None:
            source = source.base
        if isinstance(source, LocalSource):
            return source.local_name == "fn"
        return isinstance(source, GlobalSource)

    def _is(self, source: Any, value: Any) -> bool:
        try:
            return self.finder([source])()[0] is value
        except Exception as error:  # made by Dynamo itself: it is passed in each call
            logger.debug("%s is passed in each call: %r", source.name, error)
            return False

    def _locals(self) -> dict[str, Any]:
        return {"fn": self._fn()}


class LookedUp:
    """What a scope has at some sources. In each call it is one check, while nothing changes."""

    _MOST = 16  # checks that are made anew: each costs as much as some hundred looks

    def __init__(self, scope: Scope, sources: Sequence[Any]) -> None:
        self.values: list[Any] = []
        self._scope = scope
        self._sources = sources
        self._find = scope.finder(sources)
        self._same: Check = never
        self._made = 0

    def changed(self) -> bool:
        """Looks it up anew; True if something is another object than before."""
        if self._same():
            return False
        found, former = self._find(), self.values
        self.values = found
        self._same = never
        if len(found) != len(former) or not all(map(operator.is_, found, former)):
            return True
        # The second time that it is so: it will stay.
        if self._made < self._MOST:
            self._made += 1
            self._same = self._check()
        return False

    def look(self) -> list[Any]:
        """What there is now. changed() still compares with what it found itself."""
        return self._find()

    def forget(self) -> None:
        """The next look finds everything changed."""
        self.values = []
        self._same = never

    def _check(self) -> Check:
        try:
            check = self._scope.watch(self._sources, self.values)
        except Exception as error:  # what Dynamo's guards cannot follow is looked up each time
            logger.debug("parameters are looked up in each call: %r", error)
            check = never
        if not check():
            self._made = self._MOST
        return check


def _frame(fn: Any) -> None:
    """Stands for the code that is guarded: it has the local that a scope's sources begin at."""


def _weakly(fn: Any) -> Callable[[], Any]:
    """What runs a function must not keep it alive."""
    try:
        return weakref.ref(fn)
    except TypeError:
        return lambda: fn


class _Watched(torch.nn.Module):
    """Dictionaries by way of a module: there Dynamo's guards watch all of them as one."""

    def __init__(self, dictionaries: Sequence[dict[Any, Any]]) -> None:
        super().__init__()
        self.dictionaries = dict(enumerate(dictionaries))


def unchanged(dictionaries: Sequence[dict[Any, Any]], lists: Sequence[list[Any]] = ()) -> Check:
    """Whether nothing is put into these, or taken out: members may change inside."""
    try:
        return _unchanged(dictionaries, lists)
    except MissingName as error:
        warn_of(error)
        return never


def _unchanged(dictionaries: Sequence[dict[Any, Any]], lists: Sequence[list[Any]]) -> Check:
    watched = _Watched(dictionaries)
    values: list[Any] = [watched, *lists]
    manager = GuardManagerWrapper()
    plain = GuardManagerType.GUARD_MANAGER

    def at(i: int) -> Any:
        return manager.root.list_getitem_manager(i, f"L[{i}]", values[i], plain)

    own = at(0).get_generic_dict_manager("L[0].__dict__", vars(watched), plain)
    source = "L[0].dictionaries"
    table = own.dict_getitem_manager("dictionaries", source, watched.dictionaries, plain)
    for i, dictionary in watched.dictionaries.items():
        member = table.dict_getitem_manager(i, f"{source}[{i}]", dictionary, plain)
        member.add_dict_version_guard(dictionary, [f"{source}[{i}]"], None)
    for i, members in enumerate(lists, start=1):
        of_list = at(i)
        of_list.add_length_check_guard(len(members), [f"L[{i}]"], None)
        for k, item in enumerate(members):
            name = f"L[{i}][{k}]"
            part = of_list.list_getitem_manager(k, name, item, plain)
            part.add_id_match_guard(id(item), [name], None)
    manager.find_tag_safe_roots()
    check = manager.root.check
    values.append([[*members] for members in lists])  # held: nobody else comes to have their ids
    return lambda: check(values)

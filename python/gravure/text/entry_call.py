"""How a call of one of AOTAutograd's graphs becomes one of its entry."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from ..graphs.compiled_ops import CompiledCode

# What AOTAutograd calls: all arguments as one list.
Run = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Passed:
    """A result that is an argument of the graph, and nothing that its entry knows of."""

    argument: int


@dataclass
class Call:
    """How a call of a graph becomes one of its entry."""

    entry: str
    arguments: int  # that the graph takes
    taken: list[int] = field(default_factory=list)  # those that the entry takes, in order
    # For each of the graph's results its position among the entry's, and None; or -1, and the value
    # that it always has, or a Passed.
    results: list[tuple[int, Any]] = field(default_factory=list)
    values: list[str] = field(default_factory=list)  # each of the graph's results in the text
    kinds: dict[str, str] = field(default_factory=dict)  # and their types
    bound: dict[int, Any] = field(default_factory=dict)  # constants, by position among its inputs
    owners: list[fx.Node | None] = field(default_factory=list)  # by statement: EntryWriter.owners
    held: list[CompiledCode] = field(default_factory=list)  # what the entry calls by name

    kept: list[int] = field(default_factory=list)  # of `taken`: parameters and buffers
    only_tensors: bool = True  # taken and returned

    def caller(self, run: Callable[[Any], list[Any]], *, keeps: bool) -> Run:
        """`run`, which takes and returns what the entry does, as what takes and returns what the
        graph does. With `keeps`, `kept` are bound, so `run` is not given them."""
        results = self.results
        kept = set(self.kept) if keeps else ()
        taken = [i for i in self.taken if i not in kept]
        as_is = [(i, None) for i in range(len(results))]
        pick = picker(taken)
        if results == as_is and taken == list(range(self.arguments)):
            return run
        if results == as_is:
            return lambda args: run(pick(args))

        def call(args: list[Any]) -> list[Any]:
            found = run(pick(args))
            return [found[i] if i >= 0 else fixed for i, fixed in results]

        passed = {at: v.argument for at, (_, v) in enumerate(results) if isinstance(v, Passed)}
        return _passing(call, passed) if passed else call


def _passing(call: Run, passed: Mapping[int, int]) -> Run:
    """`call`, whose results at these positions are these arguments."""

    def around(args: list[Any]) -> list[Any]:
        through = {at: args[i] for at, i in passed.items()}  # `call` may take them away
        values = call(args)
        for at, value in through.items():
            values[at] = value
        return values

    return around


def picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Takes the members at these positions."""
    if len(positions) > 1:
        return operator.itemgetter(*positions)
    return lambda values: tuple([values[i] for i in positions])

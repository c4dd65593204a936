"""A program's text, and how programs of it are called: found out once for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ..graphs.given_gradients import Forms
from ..graphs.traced_graphs import TracedGraphs
from ..text.entry_call import Call
from .bound_bundle import Bundle, bundle_of
from .native_node import autograd_lists


@dataclass
class WrittenProgram:
    """What does not change from one program of a text to the next. It holds no program."""

    text: str
    calls: list[Call]  # one an entry, as its text says it
    missed: list[str]  # remarks on how it was written
    traced: TracedGraphs
    forms: Forms = ()  # of the gradients that the backward is for

    @property
    def sums(self) -> bool:
        """Whether its backward adds terms of gradients that others may add to."""
        return bool(self.traced.terms) and not self.traced.apart

    @cached_property
    def autograd(self) -> dict[str, list[int]] | None:
        """What makes both entries one node of autograd's; None where they cannot be."""
        return autograd_lists(self.calls[0], self.calls[1], self.traced, self.forms)

    @cached_property
    def bundle(self) -> Bundle | None:
        """What the forward hands its backward as one tensor, if anything."""
        results, inputs = self.traced.bundled_results, self.traced.bundled_inputs
        return bundle_of(self.calls, results, inputs) if results else None


class LoadedFrom(NamedTuple):
    """A program, and what it was loaded from: others are made of it without reading that again."""

    program: Any
    written: WrittenProgram

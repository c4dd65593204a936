"""A gradient that a graph leads from one of its results to another where nobody sees it.

`h, y = f(x)`, with y computed of h inside of the graph. Eager leads the gradient of y through h:
`h.retain_grad()`, a hook on h and torch.autograd.grad(…, h) have it. Results of one graph are side
by side in autograd's, so there h has what comes to it from outside alone. And a hook on a result is
called with None where no gradient comes to it, but to another one. The library looks in each
backward whether somebody asks for such a gradient (gradient_watch.h), and tells this. That call
cannot be mended any more; later ones are eager's.
"""

from __future__ import annotations

import enum
import inspect
import logging
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, fx

from ..errors import ExportError
from ..graphs.names import FrameNamer
from ..graphs.traced_graphs import TracedGraphs
from ..library.load import program_class
from ..library.namespace import LIBRARY
from ..options import CompileOptions
from ..text.source_lines import Locations
from ..torch_api.autograd import gradient_hooks, may_require_gradient

_MOST_RESULTS = 62  # that a number tells apart
_SILENT = ("gravure.", "torch.distributed.")  # whose hooks wait for a gradient, and do not read it
logger = logging.getLogger("gravure")


class How(enum.IntEnum):
    """As GradientWatch::How."""

    RETAINED = 0
    HOOKED = 1
    ASKED = 2
    CALLED = 3


_WORDS = {
    How.RETAINED: "retain_grad()",
    How.HOOKED: "a hook",
    How.ASKED: "torch.autograd.grad or backward(inputs=…)",
}


class Watched(Protocol):
    """A graph whose results are looked at."""

    number: int
    label: str
    options: CompileOptions
    leaves: Callable[[str], None]


class ResultsSeen:
    """Of one graph: which of its results depend on which."""

    def __init__(self, graph: Watched, traced: TracedGraphs) -> None:
        self.through = through(traced)  # one a result; empty: they are not watched
        self.number = graph.number
        self._graph = weakref.ref(graph)
        self._lines = _lines(traced)
        if self.through:
            _SEEN[self.number] = self

    def watch(self, results: Any) -> None:
        """Of a call by AOTAutograd's wrapper."""
        if self.through and isinstance(results, (tuple, list)):
            if all(isinstance(result, Tensor) for result in results):
                program_class().watch_results(list(results), self.through, self.number)

    def tell(self, result: int, others: int, how: How) -> None:
        graph = self._graph()
        if graph is None:
            return
        line = self._lines[result]
        name = f"result {result} ({line})" if line else f"result {result}"
        if how is How.CALLED:
            why, cure = (
                f"a hook on {name} is called with None, since no gradient comes to it in this "
                "backward, but to other results; eager does not call it",
                "register it where one comes, or have it do nothing with None",
            )
        else:
            other = (others & -others).bit_length() - 1
            why, cure = (
                f"the gradient of {name} is asked for, by {_WORDS[how]}, and result {other} is "
                "computed of it in the graph: what comes to it from there is left out in this "
                "backward, and in eager it is not",
                "compute what follows from it outside of the compiled function, or keep that out "
                "of it with torch.compiler.disable",
            )
        if graph.options.raises:
            raise ExportError(graph.label, why, cure)
        graph.leaves(f"{why}; {cure}")


_SEEN: weakref.WeakValueDictionary[int, ResultsSeen] = weakref.WeakValueDictionary()


def through(traced: TracedGraphs) -> list[int]:
    """One a result: a bit for each other result to which a gradient leads through it in eager.

    Empty where fewer than two have a gradient, and where nobody knows what the results are.
    """
    meta = traced.metadata
    if meta is None or traced.backward is None or not meta.are_plain:
        return []
    first = meta.before_results
    count = min(len(meta.results), _MOST_RESULTS)
    values = traced.forward.graph.output_node().args[0][first : first + count]
    own = {
        value: i
        for i, (value, info) in reversed([*enumerate(zip(values, meta.results, strict=False))])
        if isinstance(value, fx.Node) and info.requires_grad and info.is_new
    }
    if len(own) < 2:
        return []
    reached: dict[fx.Node, int] = {}  # of each node, the results that it depends on
    found = [0] * len(values)
    for node in traced.forward.graph.nodes:
        if node.op == "output" or not _is_differentiable(node):
            continue
        depends = 0
        for each in node.all_input_nodes:
            depends |= reached.get(each, 0)
        if node in own:
            for i in range(count):
                found[i] |= (depends >> i & 1) << own[node]
            depends |= 1 << own[node]
        if depends:
            reached[node] = depends
    return found + [0] * (len(meta.results) - count)


def _is_differentiable(node: fx.Node) -> bool:
    if node.target is torch.ops.aten.detach.default:  # the user's, where a result depends on it
        return False
    value = node.meta.get("val")
    return not isinstance(value, Tensor) or may_require_gradient(value)


def _lines(traced: TracedGraphs) -> list[str]:
    """Where each result is computed."""
    meta = traced.metadata
    if meta is None:
        return []
    first = meta.before_results
    values = traced.forward.graph.output_node().args[0][first : first + len(meta.results)]
    locations = Locations(FrameNamer())
    return [locations.source(v) if isinstance(v, fx.Node) else "" for v in values]


def _are_silent(hooks: Iterable[Any]) -> bool:
    """Whether all of these wait for a gradient alone."""
    return all(_module_of(hook).startswith(_SILENT) for hook in hooks)


def _module_of(hook: Any) -> str:
    while hasattr(hook, "func"):  # functools.partial
        hook = hook.func
    return f"{getattr(inspect.unwrap(hook), '__module__', None) or ''}."


# python/csrc/library.cpp declares it.
@torch.library.impl(LIBRARY, "seen_result", "CompositeExplicitAutograd")
def _seen_result(graph: int, result: int, through: int, how: int, hooked: Tensor | None) -> None:
    seen = _SEEN.get(graph)
    if seen is not None and (hooked is None or not _are_silent(gradient_hooks(hooked))):
        seen.tell(result, through, How(how))

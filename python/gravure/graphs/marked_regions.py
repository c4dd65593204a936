"""Regions of a graph that somebody else has Inductor compile, before the graph comes here.

`torch.fx.passes.regional_inductor` takes the marked nodes out and leaves one call of compiled code
for each region. A program can carry such a call (compiled_ops.py) where the region only computes,
or communicates as a program might itself (region_collectives.py), and then is all of the graph.
That is seen in its nodes, and these are gone afterwards: so who calls that pass looks first. Of
regions that came compiled, Inductor's code is asked (code_effects.py), once it is known for which
meshes.
"""

from __future__ import annotations

import logging
import operator
from typing import Any

import torch
from torch import Tensor, fx

from ..torch_api.inductor import is_compiled_region
from ..torch_api.operators import higher_order_name
from .code_effects import operators_of
from .examples import keep_example
from .mesh_values import RegionFor
from .node_facts import (
    COMMUNICATES,
    READS,
    costs_nothing,
    is_collective,
    is_inductors_own,
    is_random,
    is_view,
    schema,
    writes,
)
from .region_collectives import Collective, collectives_called, collectives_of

logger = logging.getLogger("gravure")

_MARK = "compile_with_inductor"  # PyTorch's, in meta["custom"]
_CARRIED = "gravure_carried"  # in meta, also of files; its value: whether they draw
_OPEN = "gravure_open"  # in meta: whether it is carried is said once its meshes are known


class RegionEffects:
    """What the regions of one graph do beside computing, as far as somebody has looked."""

    def __init__(self) -> None:
        # Why a program cannot carry them; "" if it can.
        self.obstacle = ""
        self.draws = False  # from the default generators, some of them
        self.collectives: list[Collective] = []  # of the one that is all of the graph
        self._looked = False
        self._came_compiled: list[Any] = []  # seen by nobody, though others were looked at

    def look_at(self, module: fx.GraphModule, *, whole: bool) -> None:
        """Looks at the regions before they are compiled; `whole`: all of the graph becomes one."""
        if not self._looked:
            self._came_compiled = [n.target for n in _compiled(module) if not may_be_carried(n)]
        nodes = _marked(module, whole)
        collectives, found = collectives_of(module) if whole else ([], "")
        found = found or next(filter(None, (_obstacle(n, whole) for n in nodes)), "")
        self.collectives += collectives
        self.obstacle = self.obstacle if self._looked and self.obstacle else found
        self._looked = True
        self.draws = self.draws or any(map(is_random, nodes))

    def allow(self, module: fx.GraphModule) -> int:
        """Lets a program carry the regions, if it can. Returns how many there are.

        Those of a graph from a file carry a mark of it, where they were looked at before. Others
        that nobody looked at are judged by their code.
        """
        compiled = _compiled(module)
        unmarked = [n for n in compiled if not may_be_carried(n)]
        came = [n for n in unmarked if not self._looked or n.target in self._came_compiled]
        if not unmarked or not self._looked:
            self.obstacle = ""
        if self.collectives and len(unmarked) - len(came) > 1:
            self.obstacle = self.obstacle or "it is not known which of them communicates"
        for node in came:
            if self.obstacle:
                break
            found = operators_of(node.target)
            if found is None:
                node.meta[_OPEN] = True
            else:
                self.obstacle = _judge(node, *found)
        for node in unmarked if not self.obstacle else ():
            if node not in came:
                node.meta[_CARRIED] = self.draws
                if self.collectives:
                    node.meta[COMMUNICATES] = list(self.collectives)
            keep_example(node)
        return len(compiled)


def judge_open(module: fx.GraphModule) -> str:
    """Has a program carry regions whose meshes are known by now. Why it cannot, or ""."""
    for node in _compiled(module):
        if not node.meta.pop(_OPEN, False):
            continue
        known = node.target.known if isinstance(node.target, RegionFor) else {}
        found = operators_of(node.target, known)
        assert found is not None
        if obstacle := _judge(node, *found):
            return obstacle
    return ""


def _judge(node: fx.Node, calls: list[fx.Node], unknown: str) -> str:
    """Has a program carry a region by what its code calls. Why it cannot, or ""."""
    if found := next(filter(None, (_obstacle(call, whole=True) for call in calls)), ""):
        return found
    if unknown:
        return f"they {unknown}"
    collectives, found = collectives_called(calls)
    if found:
        return found
    node.meta[_CARRIED] = any(map(is_random, calls))
    if collectives:
        node.meta[COMMUNICATES] = collectives
    return ""


def warn_of_regions(obstacle: str) -> None:
    """Says why a program cannot carry the regions of a graph, if it cannot."""
    if obstacle:
        logger.warning(
            "the regions that Inductor compiled cannot be captured: %s; leave these operators out "
            "of them, or leave out the passes that compile regions",
            obstacle,
        )


def may_be_carried(node: fx.Node) -> bool:
    """Whether a program may call this compiled region."""
    return _CARRIED in node.meta


def may_draw(node: fx.Node) -> bool:
    """Whether a region that may be carried draws from the default generators."""
    return bool(node.meta.get(_CARRIED))


def communicated_by(node: fx.Node) -> list[Collective]:
    """What a region that may be carried communicates."""
    return [(group, text) for group, text in node.meta.get(COMMUNICATES, ())]


def _compiled(module: fx.GraphModule) -> list[fx.Node]:
    return [n for n in module.graph.nodes if is_compiled_region(n.target)]


def _marked(module: fx.GraphModule, whole: bool) -> list[fx.Node]:
    modules = [m for m in module.modules() if isinstance(m, fx.GraphModule)]
    calls = [n for m in modules for n in m.graph.nodes if n.op == "call_function"]
    return [n for n in calls if whole or _MARK in (n.meta.get("custom") or {})]


def _obstacle(node: fx.Node, whole: bool) -> str:
    if is_collective(node) and not whole:  # else region_collectives.py looks
        return f"{node.target} in them communicates"
    if is_random(node) and node.kwargs.get("generator") is not None:
        return f"{node.target} in them draws from a generator of its own"
    if _reads(node):
        return f"{node.target} in them reads on the host"
    is_number = costs_nothing(node) and schema(node) is None and not higher_order_name(node.target)
    if whole and _writes_into_its_own(node):
        return ""
    if not is_number and not is_inductors_own(node) and writes(node):
        return f"{node.target} in them may write"
    return ""


def _reads(node: fx.Node) -> bool:
    """Whether it waits for a value of the device. Indexing does where an index is a mask, whose
    elements are counted: flex attention's masks take theirs by numbers."""
    if not any(tag in getattr(node.target, "tags", ()) for tag in READS):
        return False
    if node.target is not torch.ops.aten.index.Tensor:
        return True
    indices = [index for index in node.args[1] if index is not None]  # type: ignore[union-attr]
    examples = [i.meta.get("val") if isinstance(i, fx.Node) else None for i in indices]
    masks = (torch.bool, torch.uint8)
    return not all(isinstance(e, Tensor) and e.dtype not in masks for e in examples)


def _writes_into_its_own(node: fx.Node) -> bool:
    """Into what the graph itself has made, and nobody outside sees before it is whole."""
    found = schema(node)
    if found is None or not found.is_mutable:
        return False
    given = dict(zip((a.name for a in found.arguments), node.args, strict=False)) | node.kwargs
    written = [a.name for a in found.arguments if a.alias_info and a.alias_info.is_write]
    return all(_is_made_here(given.get(name)) for name in written)


def _is_made_here(value: Any) -> bool:
    """Whether a tensor, or each of a list, lies in memory that a call of the graph has made."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_made_here, value))
    while isinstance(value, fx.Node) and value.op == "call_function":
        found = schema(value)
        shares = found is not None and any(r.alias_info is not None for r in found.returns)
        if not shares and not is_view(value) and value.target is not operator.getitem:
            return found is not None
        value = value.args[0] if value.args else None
    return False
